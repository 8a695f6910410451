// As a script of the page: asks for cross-origin isolation, without which browsers give no threads to WebAssembly, and
// tells those who open the page as a file what to do. As a service worker: adds the headers that isolation needs, which
// plain hosts of files do not send.
"use strict";
if (typeof window === "undefined") {
  self.addEventListener("install", () => self.skipWaiting());
  self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
  self.addEventListener("fetch", (event) => {
    const { request } = event;
    if (request.cache === "only-if-cached" && request.mode !== "same-origin") return;
    event.respondWith(fetch(request).then((response) => {
      if (!response.status) return response;
      const headers = new Headers(response.headers);
      headers.set("Cross-Origin-Opener-Policy", "same-origin");
      headers.set("Cross-Origin-Embedder-Policy", "require-corp");
      headers.set("Cross-Origin-Resource-Policy", "same-origin");
      const { status, statusText } = response;
      return new Response([101, 204, 205, 304].includes(status) ? null : response.body, { status, statusText, headers });
    }));
  });
} else if (location.protocol === "file:") {
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("status").textContent = "Browsers run this page only from a web server: in its folder, run " +
      "python -m http.server, and open http://localhost:8000.";
  });
} else {
  // Resolves when there are threads, or it is clear that there will be none; the page is loaded once more in between.
  window.isolation = (async () => {
    const before = sessionStorage.getItem("isolated");
    if (crossOriginIsolated || before || !isSecureContext || !navigator.serviceWorker) return;
    sessionStorage.setItem("isolated", "tried");
    const controlled = new Promise((done) => navigator.serviceWorker.addEventListener("controllerchange", done));
    await navigator.serviceWorker.register("isolate.js");
    await Promise.race([controlled, new Promise((done) => setTimeout(done, 3000))]);
    if (navigator.serviceWorker.controller) {
      location.reload();
      await new Promise(() => {});
    }
  })().catch(() => {});
}
