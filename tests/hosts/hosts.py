"""What the checks of the plug-in for llama.cpp share: claims, the trained model as GGUF files, and runs of a host's
programs with the plug-in and without it."""
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "..", "examples", "models", "tiny-qwen3moe")
sys.path.insert(0, os.path.join(HERE, "..", "bench"))

KINDS = ("BF16", "Q8_0", "Q4_K_M", "Q2_K", "MXFP4_MOE")
BUDGETS = ("100%", "50%", "25%", "12.5%", "2%")  # of the last, a batch takes several waves


class Tap:
    def __init__(self):
        self.n = self.failed = 0

    def claim(self, holds, text, *evidence):
        self.n += 1
        self.failed += not holds
        print("%sok %d - %s" % ("" if holds else "not ", self.n, text), flush=True)
        for line in evidence if not holds else ():
            print("# " + str(line).replace("\n", "\n# "))

    def skip(self, text, why):
        self.n += 1
        print("ok %d - %s # SKIP %s" % (self.n, text, why), flush=True)

    def end(self):
        print("1..%d" % self.n)
        return 1 if self.failed else 0


def write_models(folder, quantise):
    """The trained model in every kind, quantised by llama.cpp's own program: paths by kind. It is widened, so that
    its rows are long enough for k-quants. Files that are there stay."""
    import trained_gguf
    paths = {kind: os.path.join(folder, kind + ".gguf") for kind in KINDS}
    if not os.path.exists(paths["BF16"]):
        wide = trained_gguf.widen(*trained_gguf.read_checkpoint(MODEL))
        trained_gguf.write_gguf(paths["BF16"] + ".part", *wide, byte_tokens=True)
        os.rename(paths["BF16"] + ".part", paths["BF16"])
    for kind in KINDS[1:]:
        if not os.path.exists(paths[kind]):
            subprocess.run([quantise, paths["BF16"], paths[kind] + ".part", kind], capture_output=True, check=True)
            os.rename(paths[kind] + ".part", paths[kind])
    return paths


def text_of(domain, first=0, n=None):
    """Bytes that the model has not seen in training, which are its tokens: ASCII ones, so that they are text too."""
    with open(os.path.join(MODEL, "eval", domain + ".bin"), "rb") as file:
        text = bytes(byte if 0 < byte < 128 else 0x3f for byte in file.read())
    return text[first:first + n].decode() if n else text[first:].decode()


def surroundings(plugin, preload=(), **settings):
    """The environment of a host, with a plug-in or None, and the plug-in's settings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MOEPAGE_", "GGML_", "LLAMA_ARG_"))}
    environment["OMP_WAIT_POLICY"] = "passive"  # spinning threads take each other's time on a busy machine
    environment["MOEPAGE_KERNELS"] = "llama.cpp"  # which give the bits of llama.cpp alone
    environment.update({"MOEPAGE_" + key.upper(): value for key, value in settings.items()})
    if plugin:
        environment["GGML_BACKEND_PATH"] = plugin
    if preload:
        environment["LD_PRELOAD"] = ":".join(preload)
    return environment


class Host:
    """A folder of llama.cpp's programs, and the plug-in that was built for them. Programs whose own backends are linked
    look for others only when an option names one."""

    def __init__(self, name, folder, plugin):
        self.name, self.folder, self.plugin = name, folder, plugin
        self.linked = not os.path.exists(os.path.join(folder, "libggml-cpu.so")) or \
            b"libggml-cpu" in open(os.path.join(folder, "libggml.so"), "rb").read()

    def command(self, program, *arguments, plugin=True):
        flags = ["-ot", "exps=MOEPAGE"] if plugin and self.linked and program != "llama-bench" else []
        return [os.path.join(self.folder, program), *map(str, arguments), *flags]

    def run(self, program, *arguments, plugin=True, timeout=300, preload=(), **settings):
        """Exit status, standard output, standard error."""
        done = subprocess.run(self.command(program, *arguments, plugin=plugin), stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=timeout, env=surroundings(self.plugin if plugin else None, preload, **settings))
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


class Server:
    """A running llama-server. Its standard error is in `said` once it has ended."""

    def __init__(self, host, model, *arguments, plugin=True, preload=(), **settings):
        self.port, self.said = free_port(), ""
        self.process = subprocess.Popen(
            host.command("llama-server", "-m", model, "--port", self.port, "--threads", 2, "--no-repack", *arguments,
                         plugin=plugin),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=surroundings(host.plugin if plugin else None, preload, **settings))
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        self.said = self.process.stderr.read().decode(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop(signal.SIGKILL)

    def ask(self, path, body=None, timeout=120):
        """The answer's JSON; None for one that failed."""
        request = urllib.request.Request("http://127.0.0.1:%d%s" % (self.port, path),
                                         json.dumps(body).encode() if body else None,
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.loads(answer.read())
        except (OSError, ValueError):
            return None

    def ready(self, seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            if self.ask("/health"):
                return True
            time.sleep(0.05)
        return False

    def complete(self, prompt, n_predict=24):
        """The tokens that follow a prompt, greedily; None for a request that failed."""
        out = self.ask("/completion", {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "ignore_eos": True,
                                       "cache_prompt": False, "return_tokens": True})
        return out and out.get("tokens")

    def begin(self, prompt):
        """Sends a request that does not end by itself; its connection. The server waits for those that are open."""
        body = json.dumps({"prompt": prompt, "n_predict": -1, "ignore_eos": True}).encode()
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return connection

    def complete_together(self, prompts, n_predict=24):
        answers = [None] * len(prompts)

        def one(i):
            answers[i] = self.complete(prompts[i], n_predict)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def stop(self, how=signal.SIGINT):
        """Ends it; its exit status, or None if it had to be killed after all."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.wait()

    def wait(self, seconds=60):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        status = self.process.poll()
        self.process.wait()
        self.reader.join()
        return status
