package browser

import (
	"strings"
	"testing"
)

// TestChain checks the diagram of a Deployment: its boxes and their states, the text alternative, links, and a change of the cluster.
func TestChain(t *testing.T) {
	deploy(t)
	b := newTab(t, serve(t))
	b.open("/r/apps/v1/deployments/default/web")
	set := strings.TrimSpace(kubectl(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.ownerReferences[0].name}"))
	pods := strings.Fields(kubectl(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))
	slice := strings.TrimSpace(kubectl(t, "get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "jsonpath={.items[0].metadata.name}"))
	box := func(text string) string {
		return `[...document.querySelectorAll(".chain a")].find((a) => a.textContent === "` + text + `")`
	}
	b.until(box("webDeployment, 3 of 3 ready"))
	b.until(box(set + "ReplicaSet, 3 of 3 ready"))
	b.until(box(slice + "EndpointSlice, 3 ready"))
	b.until(box("webService, ClusterIP"))
	edges := []string{"Deployment web → ReplicaSet " + set, "EndpointSlice " + slice + " → Service web"}
	for _, pod := range pods {
		b.until(box(pod + "Pod, Running"))
		edges = append(edges, "ReplicaSet "+set+" → Pod "+pod, "Pod "+pod+" → EndpointSlice "+slice)
	}
	b.click(".chain summary", "As text")
	for _, edge := range edges {
		b.see(edge)
	}
	b.until(`(document.querySelector(".chain").scrollIntoView(), true)`)
	b.shot("chain")
	kubectl(t, "scale", "deployment/web", "--replicas=1")
	b.until(box(slice + "EndpointSlice, 1 ready"))
	b.until(`[...document.querySelectorAll(".chain a")].filter((a) => a.textContent.includes("Pod, ")).length === 1`)
	b.until(`(` + box("webService, ClusterIP") + `.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true })), true)`)
	b.until(`location.pathname === "/r/core/v1/services/default/web"`)
	b.see("Endpoint slices")
	b.clean()
}
