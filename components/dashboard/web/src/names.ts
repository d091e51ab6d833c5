// Names of types for readers.

const irregular: Record<string, string> = {
  Endpoints: "Endpoints", Ingress: "Ingresses", IngressClass: "Ingress classes", NetworkPolicy: "Network policies", StorageClass: "Storage classes",
  PriorityClass: "Priority classes", RuntimeClass: "Runtime classes", GatewayClass: "Gateway classes", HorizontalPodAutoscaler: "Autoscalers",
  PersistentVolumeClaim: "Volume claims", PersistentVolume: "Volumes", CustomResourceDefinition: "Custom resources", HTTPRoute: "HTTP routes",
  GRPCRoute: "gRPC routes", TLSRoute: "TLS routes", TCPRoute: "TCP routes", UDPRoute: "UDP routes", CSIDriver: "CSI drivers", CSINode: "CSI nodes",
  APIService: "API services", NodeMetrics: "Node metrics", PodMetrics: "Pod metrics",
};

/** title returns the plural of a kind in words, such as "Stateful sets". */
export function title(kind: string): string {
  const known = irregular[kind];
  if (known) return known;
  const words = kind.replace(/([a-z])([A-Z])/g, (_, a: string, b: string) => a + " " + b.toLowerCase());
  if (/[^aeiou]y$/.test(words)) return words.slice(0, -1) + "ies";
  return words + (/(s|x|ch)$/.test(words) ? "es" : "s");
}
