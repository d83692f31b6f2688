// Pages that are opened from the disk may not start workers, and the search runs in one. Here a hidden frame does its
// work: the same messages, the same events.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.onmessage?.(event);
        this.dispatchEvent(event);
      };
      inside.importScripts = (...scripts) =>
        scripts.reduce((before, script) => before.then(() => this.load(script)), Promise.resolve());
      this.ready = this.load(new URL(address, location.href).href).catch((event) => this.onerror?.(event));
    }
    load(script) {
      return new Promise((resolve, reject) => {
        const element = this.frame.contentDocument.createElement("script");
        Object.assign(element, { src: script, onload: resolve, onerror: reject });
        this.frame.contentDocument.body.append(element);
      });
    }
    postMessage(data) {
      const message = structuredClone(data);
      this.ready.then(() =>
        this.frame.contentWindow.dispatchEvent(new this.frame.contentWindow.MessageEvent("message", { data: message })),
      );
    }
    terminate() {
      this.frame.remove();
    }
  };
}
