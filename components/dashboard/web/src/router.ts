// Addresses of pages, so that the back button and links work.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  /** parts are the decoded parts of the path. */
  parts: string[];
  query: URLSearchParams;
}

const listeners = new Set<() => void>();

export function currentRoute(): Route {
  return { parts: location.pathname.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(location.search) };
}

/** navigate shows the page at an address. With replace, the back button does not return to the current one. */
export function navigate(address: string, replace = false): void {
  if (address === location.pathname + location.search) return;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  for (const f of listeners) f();
}

/** setQuery changes parameters of the current address. Empty values remove a parameter. */
export function setQuery(values: Record<string, string>, replace = true): void {
  const q = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    if (value) q.set(name, value);
    else q.delete(name);
  }
  const text = q.toString();
  navigate(location.pathname + (text && "?" + text), replace);
}

export function useRoute(): Route {
  const [route, setRoute] = useState(currentRoute);
  useEffect(() => {
    const update = () => setRoute(currentRoute());
    listeners.add(update);
    addEventListener("popstate", update);
    return () => {
      listeners.delete(update);
      removeEventListener("popstate", update);
    };
  }, []);
  return route;
}

/** interceptLinks makes links to pages of the dashboard change the page without loading it. */
export function interceptLinks(): void {
  document.addEventListener("click", (e) => {
    const link = (e.target as Element).closest?.("a");
    const href = link?.getAttribute("href");
    // Links in diagrams are SVG elements, which have no property for the parts of the address.
    if (!link || !href || link.getAttribute("target") || link.hasAttribute("download")) return;
    const to = new URL(href, location.href);
    if (to.origin !== location.origin) return;
    if (e.button !== 0 || e.ctrlKey || e.metaKey || e.shiftKey || e.altKey || href.startsWith("#")) return;
    e.preventDefault();
    navigate(to.pathname + to.search);
  });
}
