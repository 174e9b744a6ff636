/* Search, when the site is opened from the disk: a browser starts no Worker from a file, so what
   would be one runs in a frame that nobody sees. From a server this does nothing. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      this.inside = inside
      this.frame = frame
      this.ready = new Promise((resolve, reject) => {
        inside.document.open()
        inside.postMessage = data =>
          this.dispatchEvent(new MessageEvent("message", { data }))
        inside.importScripts = (...urls) =>
          urls.reduce((before, one) => before.then(() => load(inside.document, one)),
            Promise.resolve())
        inside.document.write("<!doctype html><html><body></body></html>")
        inside.document.close()
        load(inside.document, url).then(resolve, reject)
      })
    }

    postMessage(data) {
      this.ready.then(() =>
        this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }

  function load(where, url) {
    return new Promise((resolve, reject) => {
      const script = where.createElement("script")
      script.src = url
      script.onload = resolve
      script.onerror = reject
      where.body.appendChild(script)
    })
  }
}
