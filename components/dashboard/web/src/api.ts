// Requests to the API server, which the server of the dashboard forwards with the credentials of the user.

const storageKey = "hyperkube-dashboard";
const headerName = "X-Hyperkube-Dashboard";
const protocolPrefix = "dashboard.hyperkube.io.";

/** ApiError is an error response. */
export class ApiError extends Error {
  constructor(
    readonly code: number,
    message: string,
    readonly reason = "",
    readonly details?: { causes?: { message?: string; field?: string }[] },
  ) {
    super(message);
  }
}

let onLogout = () => {};

/** whenLoggedOut registers what happens when the server no longer accepts the session. */
export function whenLoggedOut(f: () => void): void {
  onLogout = f;
}

export function loggedIn(): boolean {
  return localStorage.getItem(storageKey) !== null;
}

/** login exchanges a token for a session. */
export async function login(token: string): Promise<void> {
  const response = await fetch("/session", { method: "POST", body: JSON.stringify({ token }), headers: { "Content-Type": "application/json" } });
  if (!response.ok) throw new ApiError(response.status, (await response.text()).trim());
  localStorage.setItem(storageKey, (await response.json()).token);
}

/** loginOptions returns how a user can log in, besides with a token: provider is the host of an OpenID Connect provider. */
export async function loginOptions(): Promise<{ provider?: string }> {
  return (await fetch("/login")).json();
}

export async function logout(): Promise<void> {
  await request("/session", { method: "DELETE" }).catch(() => {});
  localStorage.removeItem(storageKey);
  onLogout();
}

/** request sends a request and returns a successful response. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set(headerName, localStorage.getItem(storageKey) ?? "");
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers });
  } catch (err) {
    if ((err as Error).name === "AbortError") throw err;
    throw new ApiError(0, "The dashboard's server cannot be reached.");
  }
  if (response.ok) return response;
  const text = await response.text();
  if (response.status === 401) {
    localStorage.removeItem(storageKey);
    onLogout();
  }
  try {
    const status = JSON.parse(text);
    throw new ApiError(response.status, status.message ?? text, status.reason, status.details);
  } catch (err) {
    if (err instanceof ApiError) throw err;
    throw new ApiError(response.status, text.trim() || response.statusText);
  }
}

export async function get<T = any>(path: string, accept = "application/json", signal?: AbortSignal): Promise<T> {
  const response = await request(path, { headers: { Accept: accept }, signal });
  return response.json();
}

export async function send<T = any>(method: string, path: string, body?: unknown, contentType = "application/json"): Promise<T> {
  const response = await request(path, {
    method,
    headers: { "Content-Type": contentType, Accept: "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  return text.startsWith("{") || text.startsWith("[") ? JSON.parse(text) : (text as T);
}

/** patch changes fields of an object with a JSON merge patch. */
export function patch<T = any>(path: string, body: unknown, contentType = "application/merge-patch+json"): Promise<T> {
  return send("PATCH", path, body, contentType);
}

/** connect opens a WebSocket with the session. */
export function connect(path: string, ...protocols: string[]): WebSocket {
  const url = new URL(path, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return new WebSocket(url, [...protocols, protocolPrefix + (localStorage.getItem(storageKey) ?? "")]);
}

/** query returns the URL query of the parameters that are not empty, with a question mark. */
export function query(params: Record<string, string | number | boolean | undefined>): string {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined && value !== "" && value !== false) q.set(name, String(value));
  }
  const text = q.toString();
  return text && "?" + text;
}
