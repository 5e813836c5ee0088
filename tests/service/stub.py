"""Scripts that play an engine, each with one manner."""

SERVER = """
import http.server, json, sys, os, time
started = time.time()
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, code, value):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(200, {})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        %s
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

COMPLETION = {
    "choices": [{"text": " Paris.", "finish_reason": "length"}],
    "usage": {"completion_tokens": 8, "prompt_tokens": 5, "total_tokens": 13},
}
READY = SERVER % f"self.answer(200, {COMPLETION!r})"
#: The port is open and the health route says 200, but completions fail.
BROKEN = SERVER % "self.answer(500, {'error': 'no'})"
EMPTY = (
    SERVER % "self.answer(200, {'choices': [{'text': '', 'finish_reason': 'stop'}], 'usage': {'completion_tokens': 1}})"
)
REFUSING = SERVER % "self.answer(404, {'error': 'The model `tiny` does not exist.'})"
#: Half a second of 503, as while weights load; then it answers.
LOADING = SERVER % f"self.answer(*((503, {{}}) if time.time() - started < 1 else (200, {COMPLETION!r})))"

#: How vLLM says that a worker failed: the cause, and then lines that only repeat that something failed.
FAILING = r"""
import sys
print("(Worker pid=7) INFO 11-30 06:51:18 [core.py:1] Loading")
print("(Worker pid=7) ERROR 11-30 06:51:19 [multiproc_executor.py:953] ValueError: Could not find the shard of rank 0")
print("(EngineCore pid=6) ERROR 11-30 06:51:22 [core.py:1510] Exception: WorkerProc initialization failed due to x")
print("RuntimeError: Engine core initialization failed. See root cause above.")
sys.exit(3)
"""

#: An engine with a child in its process group that ignores SIGTERM; writes both ids to engine.pids.
STUBBORN = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"],
    stdout=subprocess.PIPE)
child.stdout.readline()
with open(%r + ".tmp", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(%r + ".tmp", %r)
time.sleep(600)
"""

#: An engine that keeps a segment of shared memory and a temporary file, and a child that ignores SIGTERM with another;
#: it maps what the paths in its arguments name, too, and then writes engine.up.
SHARING = """
import mmap, os, signal, subprocess, sys, tempfile, time
SHARE = '''
import mmap, os, sys
def share(path):
    with open(path, "a+b") as file:
        file.truncate(4096)
        return mmap.mmap(file.fileno(), 4096)
'''
exec(SHARE)
mine, *others = %r
child = subprocess.Popen([sys.executable, "-c", SHARE + '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = share(sys.argv[1])
print("up", flush=True)
time.sleep(600)
''', mine + "-child"], stdout=subprocess.PIPE)
child.stdout.readline()
kept = [share(path) for path in (mine, *others)]
tempfile.mkstemp(prefix="socket")
open(%r, "w").close()
time.sleep(600)
"""
