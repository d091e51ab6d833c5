// The certificates of the cluster with the days until they expire.
import { get } from "./api";
import { Loading, Problem, useLoad } from "./ui";

interface Certificate {
  use: string;
  subject: string;
  issuer: string;
  expires: string;
}

interface List {
  items: Certificate[];
  incomplete?: string;
}

const day = 24 * 3600 * 1000;

/** remaining returns how long a certificate is valid. */
function remaining(expires: string): { text: string; tone: string } {
  const left = Date.parse(expires) - Date.now();
  if (left <= 0) return { text: "expired", tone: "bad" };
  const days = Math.floor(left / day);
  return { text: days === 0 ? "less than a day" : `${days} day${days === 1 ? "" : "s"}`, tone: days < 7 ? "bad" : days < 30 ? "warn" : "good" };
}

export function Certificates() {
  const { value, error, reload } = useLoad("certificates", () => get<List>("/certificates"));
  const list = [...(value?.items ?? [])].sort((a, b) => Date.parse(a.expires) - Date.parse(b.expires));
  return (
    <>
      <h2>Certificates</h2>
      {error ? <Problem error={error} onRetry={reload} /> : null}
      {!value && !error && <Loading rows={3} />}
      {list.length > 0 && (
        <div class="scroll" tabIndex={0} role="group" aria-label="Certificates">
          <table class="simple certificates">
            <thead><tr><th>Certificate</th><th>Subject</th><th>Issuer</th><th>Expires</th><th>Left</th></tr></thead>
            <tbody>
              {list.map((c) => {
                const left = remaining(c.expires);
                return (
                  <tr key={c.use + c.subject + c.expires}>
                    <td>{c.use}</td><td>{c.subject}</td><td>{c.issuer}</td><td>{new Date(c.expires).toLocaleString()}</td><td><span class={"status " + left.tone}>{left.text}</span></td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
      {value && (
        <p class="muted">
          The list has the certificates of the API server, of you, and of the CertificateSigningRequests, which the cluster deletes after a while.
          Other certificates are files of nodes, which the API does not show.
        </p>
      )}
      {value?.incomplete && <p class="notice warn">The list is incomplete: {value.incomplete}</p>}
    </>
  );
}
