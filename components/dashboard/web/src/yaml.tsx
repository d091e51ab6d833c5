// The editor of an object.
import { useState } from "preact/hooks";
import { get, query, send } from "./api";
import { Diff, Editor } from "./editor";
import { Loading, notify, Problem, useLoad } from "./ui";

/** Result is the result of applying one object. */
export interface Result {
  apiVersion: string;
  kind: string;
  namespace?: string;
  name: string;
  before: string;
  after: string;
  error?: string;
  conflict?: boolean;
}

export interface ApplyOptions {
  namespace?: string;
  dryRun?: boolean;
  force?: boolean;
  replace?: boolean;
}

export function applyManifest(manifest: string, options: ApplyOptions): Promise<Result[]> {
  return send("POST", "/apply", { manifest, ...options });
}

export function YamlTab({ path, version }: { path: string; version: string }) {
  const [base, setBase] = useState(version);
  const loaded = useLoad(path + base, () => get<{ yaml: string }>("/yaml" + query({ path })));
  const [text, setText] = useState<string>();
  const [preview, setPreview] = useState<Result>();
  const [force, setForce] = useState(false);
  const [replace, setReplace] = useState(false);
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  if (loaded.error) return <Problem error={loaded.error} onRetry={loaded.reload} />;
  if (!loaded.value) return <Loading rows={12} />;
  const changed = text !== undefined && text !== loaded.value.yaml;
  const run = async (dryRun: boolean) => {
    setBusy(true);
    setError(undefined);
    try {
      const [result] = await applyManifest(text ?? loaded.value!.yaml, { dryRun, force, replace });
      if (dryRun || result.error) setPreview(result);
      else {
        notify(`Saved ${result.name}`);
        setPreview(undefined);
        setText(undefined);
        setBase(String(Date.now()));
      }
    } catch (err) {
      setError(err);
    }
    setBusy(false);
  };
  return (
    <div class="yaml">
      <div class="toolbar">
        <button class="primary" disabled={!changed || busy} onClick={() => run(true)}>Preview changes</button>
        <button disabled={!changed || busy} onClick={() => { setText(undefined); setPreview(undefined); setBase(String(Date.now())); }}>Discard</button>
        <label class="check" title="Remove fields that are not in the text, also those of other managers"><input type="checkbox" checked={replace} onChange={(e) => setReplace(e.currentTarget.checked)} /> Replace</label>
        {version !== base && !changed && <button onClick={() => setBase(version)}>Load the current version</button>}
        {version !== base && changed && <span class="status warn">The object has changed since it was loaded</span>}
      </div>
      {error ? <Problem error={error} /> : null}
      {preview && (
        <section class="preview" aria-label="Preview">
          {preview.error ? (
            <div class="notice bad" role="alert">
              <strong>{preview.conflict ? "Other managers own these fields" : "The API server rejects the change"}</strong>
              <p>{preview.error}</p>
              {preview.conflict && <label class="check"><input type="checkbox" checked={force} onChange={(e) => setForce(e.currentTarget.checked)} /> Take over the fields</label>}
            </div>
          ) : preview.before === preview.after ? (
            <p class="notice warn">The API server would change nothing. Fields that other managers own are removed only with Replace.</p>
          ) : <Diff before={preview.before} after={preview.after} />}
          <div class="toolbar">
            {!preview.error && <button class="primary" disabled={busy} onClick={() => run(false)}>Save</button>}
            {preview.error && <button class="primary" disabled={busy} onClick={() => run(true)}>Preview again</button>}
            <button onClick={() => setPreview(undefined)}>Back to the editor</button>
          </div>
        </section>
      )}
      <div hidden={!!preview && !preview.error}>
        <Editor key={path + base} text={loaded.value.yaml} onChange={setText} label="YAML of the object" />
      </div>
    </div>
  );
}
