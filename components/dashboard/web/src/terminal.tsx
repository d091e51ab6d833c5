// The terminal of a container.
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { useEffect, useRef, useState } from "preact/hooks";
import { connect } from "./api";

// The first byte of each message of the protocol v5.channel.k8s.io.
const stdin = 0, stdout = 1, stderr = 2, failure = 3, resize = 4;

/** shells are tried in this order. */
const shell = ["sh", "-c", "command -v bash >/dev/null && exec bash || exec sh"];

export function TerminalTab({ pod, attach }: { pod: any; attach: string }) {
  const containers: string[] = pod.spec.containers.map((c: any) => c.name);
  const debuggers: string[] = (pod.spec.ephemeralContainers ?? []).map((c: any) => c.name);
  const [container, setContainer] = useState(attach || containers[0]);
  const [command, setCommand] = useState("");
  const [round, setRound] = useState(0);
  const isDebugger = debuggers.includes(container) || container === attach;
  const running = [...(pod.status?.containerStatuses ?? []), ...(pod.status?.ephemeralContainerStatuses ?? [])].some((s: any) => s.name === container && s.state?.running);
  return (
    <div class="terminal">
      <form class="toolbar" onSubmit={(e) => { e.preventDefault(); setCommand(new FormData(e.currentTarget).get("command") as string); setRound(round + 1); }}>
        <label class="inline">Container
          <select value={container} onChange={(e) => setContainer(e.currentTarget.value)}>
            {[...new Set([...containers, ...debuggers, container])].map((c) => <option key={c}>{c}</option>)}
          </select>
        </label>
        {!isDebugger && <label class="inline">Command<input name="command" placeholder="a shell" defaultValue={command} /></label>}
        <button>Connect again</button>
      </form>
      {running ? (
        <Screen key={`${container} ${round}`} pod={pod.metadata} container={container} command={command ? command.split(/\s+/) : shell} attach={isDebugger} />
      ) : <p class="notice warn" role="status">The container is not running. The terminal opens when it runs.</p>}
    </div>
  );
}

function Screen({ pod, container, command, attach }: { pod: { namespace: string; name: string }; container: string; command: string[]; attach: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const css = getComputedStyle(document.documentElement);
    const color = (name: string) => css.getPropertyValue(name).trim();
    const terminal = new Terminal({
      fontSize: 13, fontFamily: "ui-monospace, monospace", cursorBlink: true, scrollback: 5000, screenReaderMode: true,
      theme: { background: color("--term"), foreground: color("--term-text"), cursor: color("--term-text") },
    });
    const fit = new FitAddon();
    terminal.loadAddon(fit);
    terminal.open(box.current!);
    fit.fit();
    const q = new URLSearchParams({ container, stdin: "true", stdout: "true", tty: "true" });
    if (!attach) for (const word of command) q.append("command", word);
    const socket = connect(`/api/v1/namespaces/${pod.namespace}/pods/${pod.name}/${attach ? "attach" : "exec"}?${q}`, "v5.channel.k8s.io");
    socket.binaryType = "arraybuffer";
    const write = (channel: number, data: string) => {
      if (socket.readyState !== WebSocket.OPEN) return;
      const text = new TextEncoder().encode(data);
      const message = new Uint8Array(text.length + 1);
      message[0] = channel;
      message.set(text, 1);
      socket.send(message);
    };
    const size = () => write(resize, JSON.stringify({ Width: terminal.cols, Height: terminal.rows }));
    let result = "";
    socket.onopen = () => {
      size();
      terminal.focus();
    };
    socket.onmessage = (e) => {
      const data = new Uint8Array(e.data as ArrayBuffer);
      if (data[0] === stdout || data[0] === stderr) terminal.write(data.subarray(1));
      if (data[0] === failure) {
        const status = JSON.parse(new TextDecoder().decode(data.subarray(1)));
        if (status.status !== "Success") result = status.message;
      }
    };
    socket.onclose = (e) => terminal.write(`\r\n\x1b[2m[closed${result ? ": " + result : e.code === 1006 ? ": the container may have no shell, or you may not run commands in it" : ""}]\x1b[0m\r\n`);
    const input = terminal.onData((data) => write(stdin, data));
    const resized = terminal.onResize(size);
    const observer = new ResizeObserver(() => fit.fit());
    observer.observe(box.current!);
    return () => {
      observer.disconnect();
      input.dispose();
      resized.dispose();
      socket.close();
      terminal.dispose();
    };
  }, []);
  return <div class="screen" ref={box} />;
}
