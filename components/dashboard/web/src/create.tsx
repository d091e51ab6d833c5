// The page that creates objects from a manifest.
import { useState } from "preact/hooks";
import { Lazy } from "./lazy";

export function CreatePage({ namespace, onCreated }: { namespace: string; onCreated: () => void }) {
  return (
    <section class="page fill">
      <header class="page-head"><h1>Create from file</h1></header>
      <Lazy load={() => Promise.all([import("./yaml"), import("./editor")])} render={([y, e]) => <Form yaml={y} editor={e} namespace={namespace} onCreated={onCreated} />} />
    </section>
  );
}

type YamlModule = typeof import("./yaml");

function Form({ yaml, editor, namespace, onCreated }: { yaml: YamlModule; editor: typeof import("./editor"); namespace: string; onCreated: () => void }) {
  const [file, setFile] = useState({ text: "", round: 0 });
  const [text, setText] = useState("");
  const [results, setResults] = useState<Awaited<ReturnType<YamlModule["applyManifest"]>>>();
  const [applied, setApplied] = useState(false);
  const [error, setError] = useState("");
  const [force, setForce] = useState(false);
  const run = async (dryRun: boolean) => {
    setError("");
    try {
      setResults(await yaml.applyManifest(text, { namespace, dryRun, force }));
      setApplied(!dryRun);
      if (!dryRun) onCreated();
    } catch (err) {
      setError((err as Error).message);
    }
  };
  const load = async (list: FileList | null) => {
    if (!list?.length) return;
    const texts = await Promise.all([...list].map((f) => f.text()));
    const joined = texts.join("\n---\n");
    setText(joined);
    setResults(undefined);
    setFile({ text: joined, round: file.round + 1 });
  };
  return (
    <div class="yaml" onDragOver={(e) => e.preventDefault()} onDrop={(e) => { e.preventDefault(); void load(e.dataTransfer?.files ?? null); }}>
      <div class="toolbar">
        <label class="inline">Files<input type="file" multiple accept=".yaml,.yml,.json" onChange={(e) => load(e.currentTarget.files)} /></label>
        <button disabled={!text.trim()} onClick={() => run(true)}>Preview</button>
        <button class="primary" disabled={!text.trim()} onClick={() => run(false)}>Apply</button>
        <span class="muted">Objects without a namespace are created in {namespace || "default"}.</span>
      </div>
      {error && <p class="notice bad" role="alert">{error}</p>}
      {results && (
        <section class="preview" aria-label="Results">
          <ul class="names">
            {results.map((r) => (
              <li key={r.kind + r.namespace + r.name}>
                {r.kind} {r.namespace && r.namespace + "/"}{r.name}:{" "}
                {r.error ? <span class="status bad">{r.error}</span> : (
                  <span class="status good">{!r.before ? (applied ? "created" : "would be created") : r.before === r.after ? "unchanged" : applied ? "changed" : "would be changed"}</span>
                )}
              </li>
            ))}
          </ul>
          {results.some((r) => r.conflict) && <label class="check"><input type="checkbox" checked={force} onChange={(e) => setForce(e.currentTarget.checked)} /> Take over fields of other managers</label>}
          {!applied && results.filter((r) => !r.error && r.before && r.before !== r.after).map((r) => <editor.Diff key={r.kind + r.name} before={r.before} after={r.after} />)}
        </section>
      )}
      <editor.Editor key={file.round} text={file.text} onChange={setText} label="Manifest" />
    </div>
  );
}
