package browser

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// explained returns the sentence and remedy of the first problem that the command explain-pod reports for a pod or workload.
func explained(t *testing.T, name string) (sentence, remedy string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), binary, "explain-pod", "-n", "default", "-o", "json", name).Output()
	if err != nil {
		t.Fatalf("explain-pod %s: %v", name, err)
	}
	var got struct {
		Findings []struct{ Severity, Sentence, Remedy string }
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	for _, f := range got.Findings {
		if f.Severity == "problem" {
			return f.Sentence, f.Remedy
		}
	}
	t.Fatalf("explain-pod reports no problem of %s: %s", name, out)
	return "", ""
}

// TestExplanation compares the explanation on the pages of a Deployment, of its pod, and of a pod that runs, with the command explain-pod.
func TestExplanation(t *testing.T) {
	deploy(t)
	eventually(t, "Unschedulable", "get", "pods", "-l", "app=huge", "-o", "jsonpath={.items[0].status.conditions[*].reason}")
	b := newTab(t, serve(t))
	sentence, remedy := explained(t, "deployment/huge")
	b.open("/r/apps/v1/deployments/default/huge")
	b.see(strings.TrimSpace(sentence))
	b.see("Remedy: " + remedy)
	b.shot("explanation-deployment")
	pod := strings.TrimSpace(kubectl(t, "get", "pods", "-l", "app=huge", "-o", "jsonpath={.items[0].metadata.name}"))
	b.click(".explanation a", pod)
	b.until(`location.pathname === "/r/core/v1/pods/default/` + pod + `"`)
	b.see("is not scheduled")
	b.see(strings.TrimSpace(sentence))
	kubectl(t, "wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
	b.open("/r/core/v1/pods/default/client")
	b.see("is running and ready")
	b.see("No problem was found.")
	b.clean()
}
