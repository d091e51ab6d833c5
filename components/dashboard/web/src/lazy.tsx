// Parts of pages whose code is loaded when it is needed.
import type { ComponentChildren } from "preact";
import { Loading, Problem, useLoad } from "./ui";

/** Lazy shows a part whose code is loaded when it is needed. */
export function Lazy<T>({ load, render }: { load: () => Promise<T>; render: (module: T) => ComponentChildren }) {
  const { value, error, reload } = useLoad("lazy", load);
  if (error) return <Problem error={{ code: 0, message: "This part of the page could not be loaded." }} onRetry={reload} />;
  return value ? <>{render(value)}</> : <Loading />;
}
