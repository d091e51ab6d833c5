// The page of the dashboard.
import { render } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, loggedIn, login, loginOptions, logout, whenLoggedOut } from "./api";
import { CreatePage } from "./create";
import { forgetResources, ofKind, pagePath, resources, type Resource } from "./discovery";
import { ForwardsPage } from "./forwards";
import { ListPage } from "./list";
import { ObjectPage } from "./object";
import { Overview } from "./overview";
import { HealthPage } from "./health";
import { NetworkPage } from "./networkpage";
import { StoragePage } from "./storagepage";
import { LogSearchPage } from "./logsearch";
import { interceptLinks, navigate, setQuery, useRoute } from "./router";
import "./sheet";
import { stream, useWatch } from "./stream";
import { title } from "./names";
import { Dialog, Loading, Problem, Toasts } from "./ui";
import { AccessPage } from "./access";

interface Session {
  context: string;
  server: string;
  login: boolean;
  /** forwarding reports whether the server forwards ports of the user's machine. */
  forwarding: boolean;
}

type Theme = "" | "light" | "dark";

const themeKey = "hyperkube-dashboard-theme";

function setTheme(theme: Theme): void {
  if (theme) localStorage.setItem(themeKey, theme);
  else localStorage.removeItem(themeKey);
  document.documentElement.dataset.theme = theme;
}

document.documentElement.dataset.theme = localStorage.getItem(themeKey) ?? "";

/** sections are the groups of the navigation, with the kinds of each. */
const sections: [string, [string, string][]][] = [
  ["Workloads", [["v1", "Pod"], ["apps/v1", "Deployment"], ["apps/v1", "StatefulSet"], ["apps/v1", "DaemonSet"], ["batch/v1", "Job"], ["batch/v1", "CronJob"], ["autoscaling/v2", "HorizontalPodAutoscaler"]]],
  ["Network", [["v1", "Service"], ["networking.k8s.io/v1", "Ingress"], ["gateway.networking.k8s.io/v1", "Gateway"], ["gateway.networking.k8s.io/v1", "HTTPRoute"], ["networking.k8s.io/v1", "NetworkPolicy"]]],
  ["Configuration", [["v1", "ConfigMap"], ["v1", "Secret"], ["v1", "ServiceAccount"]]],
  ["Storage", [["v1", "PersistentVolumeClaim"], ["v1", "PersistentVolume"], ["storage.k8s.io/v1", "StorageClass"]]],
  ["Cluster", [["v1", "Node"], ["v1", "Namespace"], ["v1", "Event"], ["rbac.authorization.k8s.io/v1", "ClusterRole"], ["apiextensions.k8s.io/v1", "CustomResourceDefinition"]]],
];

function App() {
  const [session, setSession] = useState<Session>();
  const [error, setError] = useState<unknown>();
  const [out, setOut] = useState(!loggedIn());
  const begin = () => {
    setOut(false);
    setError(undefined);
    stream.start();
    get<Session>("/session").then(setSession, (err) => err.code !== 401 && setError(err));
  };
  useEffect(() => {
    whenLoggedOut(() => {
      setOut(true);
      setSession(undefined);
    });
    if (loggedIn()) begin();
  }, []);
  if (out) return <Login onDone={begin} />;
  if (error) return <main class="alone"><Problem error={error} onRetry={begin} /></main>;
  return <Shell session={session} />;
}

function Login({ onDone }: { onDone: () => void }) {
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const [provider, setProvider] = useState("");
  useEffect(() => void loginOptions().then((o) => setProvider(o.provider ?? ""), () => {}), []);
  const submit = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    const token = new FormData(e.currentTarget as HTMLFormElement).get("token") as string;
    try {
      await login(token.trim());
      onDone();
    } catch (err) {
      setError((err as Error).message);
      setBusy(false);
    }
  };
  return (
    <main class="alone">
      <h1>Log in</h1>
      <p>
        Open the URL that <code>hyperkube dashboard</code> has printed, or enter a token. A dashboard in the cluster accepts the token of a service
        account: <code>kubectl create token NAME</code>.
      </p>
      <form onSubmit={submit}>
        <label>Token<input name="token" type="password" autocomplete="off" required autofocus /></label>
        <button class="primary" disabled={busy}>Log in</button>
      </form>
      {provider && <p><button onClick={() => location.assign("/oidc/login")}>Log in with {provider}</button></p>}
      {error && <p class="notice bad" role="alert">{error}</p>}
    </main>
  );
}

function Shell({ session }: { session?: Session }) {
  const route = useRoute();
  const [all, setAll] = useState<Resource[]>();
  const [error, setError] = useState<unknown>();
  const [menu, setMenu] = useState(false);
  const [palette, setPalette] = useState(false);
  const main = useRef<HTMLElement>(null);
  const namespace = route.query.get("ns") ?? sessionStorage.getItem("namespace") ?? "";
  const loadTypes = () => resources().then(setAll, setError);
  useEffect(() => void loadTypes(), []);
  useEffect(() => {
    const onKey = (e: KeyboardEvent) => {
      const typing = (e.target as Element).closest("input,textarea,select,[contenteditable],.xterm");
      if ((e.key === "k" && (e.ctrlKey || e.metaKey)) || (e.key === "/" && !typing)) {
        e.preventDefault();
        setPalette(true);
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const path = route.parts.join("/");
  const first = useRef(true);
  useEffect(() => {
    setMenu(false);
    // Screen readers continue at the new page.
    if (!first.current) main.current?.focus();
    first.current = false;
    main.current?.scrollTo(0, 0);
    document.title = [...route.parts.slice(3).reverse(), session?.context ?? "hyperkube"].filter((p) => p !== "-").join(" · ");
  }, [path, session]);
  const setNamespace = (ns: string) => {
    sessionStorage.setItem("namespace", ns);
    if (route.parts[0] === "logs") return setQuery({ ns });
    const onObject = route.parts[0] === "r" && route.parts.length > 4;
    navigate(onObject ? "/" + route.parts.slice(0, 4).join("/") : location.pathname + (ns ? "?ns=" + ns : ""));
    dispatchEvent(new PopStateEvent("popstate"));
  };
  return (
    <div class={menu ? "shell menu-open" : "shell"}>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); main.current?.focus(); }}>Skip to the content</a>
      <header class="top">
        <button class="plain menu-button" aria-expanded={menu} aria-controls="nav" onClick={() => setMenu(!menu)}>☰<span class="hidden">Menu</span></button>
        <a class="brand" href="/">{session?.context || "cluster"}</a>
        <NamespaceSelect value={namespace} onChange={setNamespace} />
        <button class="search-button" onClick={() => setPalette(true)}>Go to… <kbd>/</kbd></button>
        <span class="grow" />
        <a class="button" href="/create">Create</a>
        <ThemeSwitch />
        {session?.login && <button onClick={() => logout()}>Log out</button>}
      </header>
      <Connection />
      <nav id="nav" aria-label="Pages">
        <NavLink href="/" path={route.parts.length === 0}>Overview</NavLink>
        {sections.map(([heading, kinds]) => (
          <section key={heading}>
            <h2>{heading}</h2>
            {kinds.map(([version, kind]) => {
              const r = all && ofKind(all, version, kind);
              return r && <NavLink key={kind} href={pagePath(r)} path={("/" + path + "/").startsWith(pagePath(r) + "/")}>{title(kind)}</NavLink>;
            })}
          </section>
        ))}
        <section>
          <h2>More</h2>
          <NavLink href="/network" path={path === "network"}>Network</NavLink>
          <NavLink href="/storage" path={path === "storage"}>Storage</NavLink>
          <NavLink href="/logs" path={path === "logs"}>Log search</NavLink>
          {session?.forwarding && <NavLink href="/forwards" path={path === "forwards"}>Port forwards</NavLink>}
          <NavLink href="/health" path={path === "health"}>Control plane health</NavLink>
          <NavLink href="/access" path={path === "access"}>Access review</NavLink>
          <NavLink href="/types" path={path === "types"}>All types</NavLink>
        </section>
      </nav>
      <main id="main" ref={main} tabIndex={-1}>
        {error ? <Problem error={error} onRetry={() => { setError(undefined); loadTypes(); }} /> : <Content route={route} all={all} namespace={namespace} forwarding={session?.forwarding ?? false} />}
      </main>
      {palette && <Palette all={all ?? []} onClose={() => setPalette(false)} />}
      <Toasts />
    </div>
  );
}

function NavLink({ href, path, children }: { href: string; path: boolean; children: string }) {
  return <a href={href} aria-current={path ? "page" : undefined}>{children}</a>;
}

interface ContentProps {
  route: ReturnType<typeof useRoute>;
  all?: Resource[];
  namespace: string;
  forwarding: boolean;
}

function Content({ route, all, namespace, forwarding }: ContentProps) {
  const [kind, group, version, plural, ns, name] = route.parts;
  if (!kind) return <Overview namespace={namespace} all={all} />;
  if (kind === "create") return <CreatePage namespace={namespace} onCreated={forgetResources} />;
  if (kind === "health") return <HealthPage />;
  if (kind === "logs") return <LogSearchPage route={route} namespace={namespace} />;
  if (kind === "forwards" && forwarding) return <ForwardsPage />;
  if (kind === "access") return <AccessPage namespace={namespace} />;
  if (!all) return <Loading rows={12} />;
  if (kind === "network") return <NetworkPage all={all} namespace={namespace} route={route} />;
  if (kind === "storage") return <StoragePage all={all} namespace={namespace} />;
  if (kind === "types") return <Types all={all} />;
  const r = kind === "r" && all.find((one) => one.group === (group === "core" ? "" : group) && one.plural === plural);
  if (!r) return <Problem error={{ code: 404, message: `The cluster does not serve ${plural ?? location.pathname}.` }} />;
  const resource = { ...r, version: version ?? r.version };
  if (name) return <ObjectPage key={location.pathname} resource={resource} all={all} namespace={ns === "-" ? "" : ns} name={name} route={route} forwarding={forwarding} />;
  return <ListPage key={r.group + r.plural} resource={resource} route={route} namespace={r.namespaced ? namespace : ""} />;
}

function Types({ all }: { all: Resource[] }) {
  const [word, setWord] = useState("");
  const list = all
    .filter((r) => (r.kind + r.plural + r.group + r.shortNames).toLowerCase().includes(word.toLowerCase()))
    .sort((a, b) => a.group.localeCompare(b.group) || a.kind.localeCompare(b.kind));
  return (
    <section class="page">
      <header class="page-head">
        <h1>All types</h1><span class="muted">{list.length}</span>
        <input type="search" placeholder="Filter" aria-label="Filter types" value={word} onInput={(e) => setWord(e.currentTarget.value)} />
      </header>
      <table class="simple">
        <thead><tr><th>Kind</th><th>Group</th><th>Version</th><th>Scope</th><th>Short names</th></tr></thead>
        <tbody>
          {list.map((r) => (
            <tr key={r.group + r.plural}>
              <td><a href={pagePath(r)}>{r.kind}</a></td><td>{r.group || "core"}</td><td>{r.version}</td><td>{r.namespaced ? "Namespace" : "Cluster"}</td><td>{r.shortNames.join(", ")}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function NamespaceSelect({ value, onChange }: { value: string; onChange: (ns: string) => void }) {
  const list = useWatch<{ name: string }>({ path: "/api/v1/namespaces", view: "table" });
  const namespaces = useMemo(() => list.list.map((n) => n.name).sort(), [list.list]);
  // A user without the permission to list namespaces enters the name.
  if (list.error?.code === 403) {
    return <label class="inline">Namespace<input value={value} onChange={(e) => onChange(e.currentTarget.value)} /></label>;
  }
  return (
    <label class="inline">
      <span class="hidden">Namespace</span>
      <select value={value} onChange={(e) => onChange(e.currentTarget.value)}>
        <option value="">All namespaces</option>
        {value && !namespaces.includes(value) && <option value={value}>{value}</option>}
        {namespaces.map((n) => <option key={n} value={n}>{n}</option>)}
      </select>
    </label>
  );
}

function ThemeSwitch() {
  const [theme, set] = useState((localStorage.getItem(themeKey) ?? "") as Theme);
  return (
    <label class="inline">
      <span class="hidden">Theme</span>
      <select value={theme} onChange={(e) => { const t = e.currentTarget.value as Theme; set(t); setTheme(t); }}>
        <option value="">System theme</option>
        <option value="light">Light</option>
        <option value="dark">Dark</option>
      </select>
    </label>
  );
}

/** Connection shows that the page is not connected. */
function Connection() {
  const [state, set] = useState(stream.state);
  useEffect(() => stream.onState(() => set(stream.state)), []);
  return (
    <div role="status" aria-live="polite" class="connection">
      {state === "reconnecting" && (
        <p>
          The connection to the dashboard's server is lost. The page shows the last known state and connects again automatically.
          <button onClick={() => stream.reconnect()}>Connect now</button>
        </p>
      )}
    </div>
  );
}

/** Palette goes to a type or page by its name. */
function Palette({ all, onClose }: { all: Resource[]; onClose: () => void }) {
  const [word, setWord] = useState("");
  const [active, setActive] = useState(0);
  const entries = useMemo(() => {
    const pages = [["Overview", "/"], ["Create from file", "/create"], ["Network", "/network"], ["Storage", "/storage"], ["Log search", "/logs"], ["Control plane health", "/health"], ["Access review", "/access"], ["All types", "/types"]].map(([label, href]) => ({ label, href, detail: "page", words: label }));
    const types = all.map((r) => ({ label: r.kind, href: pagePath(r), detail: r.group || "core", words: [r.kind, r.plural, ...r.shortNames].join(" ") }));
    const w = word.toLowerCase();
    const exact = (t: { words: string }) => (t.words.toLowerCase().split(" ").includes(w) ? 0 : t.words.toLowerCase().startsWith(w) ? 1 : 2);
    return [...types, ...pages].filter((t) => t.words.toLowerCase().includes(w)).sort((a, b) => exact(a) - exact(b) || a.label.localeCompare(b.label)).slice(0, 12);
  }, [all, word]);
  const onKey = (e: KeyboardEvent) => {
    if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      e.preventDefault();
      setActive((active + (e.key === "ArrowDown" ? 1 : entries.length - 1)) % Math.max(1, entries.length));
    } else if (e.key === "Enter" && entries[active]) {
      e.preventDefault();
      onClose();
      navigate(entries[active].href);
    }
  };
  return (
    <Dialog title="Go to" onClose={onClose}>
      <input
        autofocus role="combobox" aria-expanded="true" aria-controls="palette" aria-label="Type or page" aria-activedescendant={`palette-${active}`}
        placeholder="Type or page, for example deploy" value={word} onKeyDown={onKey} onInput={(e) => { setWord(e.currentTarget.value); setActive(0); }}
      />
      <ul id="palette" role="listbox" aria-label="Results">
        {entries.map((t, i) => (
          <li key={t.href} id={`palette-${i}`} role="option" aria-selected={i === active} onClick={() => { onClose(); navigate(t.href); }}>
            {t.label} <span class="muted">{t.detail}</span>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}

/** start exchanges the token in the address, if there is one, and shows the page. */
async function start(): Promise<void> {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname + location.search);
    // Without success, the page shows the login.
    await login(token).catch(() => {});
  }
  interceptLinks();
  const root = document.getElementById("app")!;
  root.textContent = "";
  render(<App />, root);
}

void start();
