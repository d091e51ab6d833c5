package browser

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestLogSearch searches the stored logs: without the add-on, with it by text and by an expression, and those of a deleted pod.
func TestLogSearch(t *testing.T) {
	b := newTab(t, serve(t))
	b.open("/logs?ns=default")
	b.see("hyperkube addon enable logging")
	b.clean()

	root := os.Getenv(insideEnv)
	addon := func(action string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), binary, "addon", "--root", root, action, "logging").CombinedOutput(); err != nil {
			t.Fatalf("addon %s: %v\n%s", action, err, out)
		}
	}
	addon("enable")
	t.Cleanup(func() { _ = exec.Command(binary, "addon", "--root", root, "disable", "logging").Run() })
	kubectl(t, "wait", "--for=create", "-n", "kube-system", "daemonset/hyperkube-logging", "--timeout=60s")
	kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/hyperkube-logging", "--timeout=90s")
	kubectl(t, "wait", "--for=condition=Available", "apiservice/v1alpha1.logs.hyperkube.io", "--timeout=60s")
	kubectl(t, "run", "task", "--image="+image(t), "--labels=app=task", "--restart=Never", "--", "hello", "get", "--timeout=1s", "http://127.0.0.1:1/")
	eventuallyPrints(t, "refused", "logs", "-n", "default", "task")
	kubectl(t, "delete", "pod", "task")

	// The command prints the same records.
	out, err := exec.CommandContext(t.Context(), binary, "logs", "-n", "default", "-l", "app=task", "--no-prefix", "--grep", "connection refused").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := strings.TrimSpace(strings.SplitN(string(out), "\n", 2)[0])
	b.open("/logs?ns=default")
	b.see("task/task")
	b.fill("form [name=q]", "CONNECTION refused")
	b.fill("form [name=l]", "app=task")
	b.click("form button", "Search")
	b.until(`location.search.includes("app%3Dtask")`)
	b.see(want)
	b.until(`document.querySelector(".log mark")?.textContent === "connection refused"`)
	b.shot("log-search")
	b.click("button", "Download")
	b.see("Downloaded")

	b.fill("form [name=q]", "no such text")
	b.click("form button", "Search")
	b.see("No record matches.")
	b.fill("form [name=q]", "connection (refused|reset)")
	b.click("form label", "Regular expression")
	b.click("form button", "Search")
	b.see(want)
	b.clean()
	b.fill("form [name=q]", "(")
	b.click("form button", "Search")
	b.see("missing closing )")
	for _, p := range b.taken() {
		if !strings.Contains(p, "400") {
			t.Errorf("the browser logged: %s", p)
		}
	}
}
