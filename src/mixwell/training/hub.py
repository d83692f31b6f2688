"""Model folders on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from mixwell.utils.errors import RunError


def push_folder(
    folder: Path, repo_id: str, *, private: bool | None = None, token: str | None = None, commit_message: str
) -> str:
    """Upload a model folder; the repository is made where it is missing.

    Returns:
        The address of the repository.

    Raises:
        RunError: the hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=address.repo_id, folder_path=folder, commit_message=commit_message)
    except Exception as error:  # of the network, the hub or the name: each layer has its own kinds
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise RunError(f"hub repository {repo_id}: {reason}; check the name, the token and the network") from error
    return str(address)
