package browser

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// eventually waits until kubectl prints a text.
func eventually(t *testing.T, want string, args ...string) {
	t.Helper()
	eventuallyPrints(t, want, append([]string{"kubectl"}, args...)...)
}

// eventuallyPrints waits until a command of the program prints a text.
func eventuallyPrints(t *testing.T, want string, args ...string) {
	t.Helper()
	deadline := time.Now().Add(40 * time.Second)
	for {
		out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
		if strings.Contains(string(out), want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("hyperkube %s printed %q (%v), expected %q", strings.Join(args, " "), out, err, want)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// fill enters a value in the input of a CSS selector.
func (b *tab) fill(selector, value string) {
	b.Helper()
	b.until(fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		if (!e) return false;
		Object.getOwnPropertyDescriptor(Object.getPrototypeOf(e), "value").set.call(e, %q);
		e.dispatchEvent(new Event("input", { bubbles: true }));
		e.dispatchEvent(new Event("change", { bubbles: true }));
		return true;
	})()`, selector, value))
}

// edit replaces a word of a line in the editor.
func (b *tab) edit(line, from, to string) {
	b.Helper()
	find := fmt.Sprintf(`(() => {
		const line = [...document.querySelectorAll(".cm-line")].find((l) => l.textContent.includes(%q));
		const walker = line && document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
		for (let node; (node = walker?.nextNode()); ) {
			const at = node.data.indexOf(%q);
			if (at < 0) continue;
			const range = document.createRange();
			range.setStart(node, at);
			range.setEnd(node, at + %q.length);
			const r = range.getBoundingClientRect();
			return [r.x + r.width / 2, r.y + r.height / 2];
		}
		return null;
	})()`, line, from, from)
	b.until(find)
	at, err := chromedp.Run(b.ctx, chromedp.Evaluate[[]float64](find))
	if err != nil {
		b.Fatal(err)
	}
	b.run(chromedp.MouseClickXY(at[0], at[1], chromedp.ClickCount(2)), chromedp.KeyEvent(to))
}

// press presses a key.
func (b *tab) press(key string) {
	b.Helper()
	b.run(chromedp.KeyEvent(key))
}

// TestActions runs each action of the page and verifies its effect with kubectl.
func TestActions(t *testing.T) {
	deploy(t)
	b := newTab(t, serve(t))
	on := func(t *testing.T) *tab { return &tab{T: t, ctx: b.ctx, url: b.url, events: b.events} }
	const web = "/r/apps/v1/deployments/default/web"

	t.Run("scale", func(t *testing.T) {
		b := on(t)
		b.open(web)
		b.click("button", "Scale…")
		b.fill("dialog input", "2")
		b.click("dialog button", "Scale")
		b.see("Scaled web to 2")
		eventually(t, "2", "get", "deployment/web", "-o", "jsonpath={.spec.replicas}")
		b.see("2 of 2 ready")
	})
	t.Run("restart", func(t *testing.T) {
		b := on(t)
		b.open(web)
		b.click("button", "Restart")
		b.see("Restarting web")
		eventually(t, "20", "get", "deployment/web", "-o", "jsonpath={.spec.template.metadata.annotations.kubectl\\.kubernetes\\.io/restartedAt}")
		kubectl(t, "rollout", "status", "deployment/web", "--timeout=60s")
	})
	t.Run("rollback", func(t *testing.T) {
		b := on(t)
		b.open(web)
		b.click("button", "Roll back…")
		b.click("dialog button", "Revision 1")
		b.see("Rolling back to revision 1")
		eventually(t, "3", "get", "deployment/web", "-o", "jsonpath={.metadata.annotations.deployment\\.kubernetes\\.io/revision}")
		if out := kubectl(t, "get", "deployment/web", "-o", "jsonpath={.spec.template.metadata.annotations}"); strings.Contains(out, "restartedAt") {
			t.Errorf("the template has the annotations %s", out)
		}
	})
	t.Run("edit", func(t *testing.T) {
		b := on(t)
		b.open("/r/example.com/v1/ships/default/mary?tab=yaml")
		b.edit("sails: 7", "7", "9")
		b.click("button", "Preview changes")
		b.see("Other managers own these fields")
		b.click("label", "Take over the fields")
		b.click("button", "Preview again")
		b.see("sails: 9")
		eventually(t, "7", "get", "ship/mary", "-o", "jsonpath={.spec.sails}")
		b.shot("diff")
		b.click("button", "Save")
		b.see("Saved mary")
		eventually(t, "9", "get", "ship/mary", "-o", "jsonpath={.spec.sails}")
	})
	t.Run("create", func(t *testing.T) {
		b := on(t)
		b.open("/create?ns=default")
		b.until(`document.querySelector(".cm-content")`)
		b.until(`(document.querySelector(".cm-content").focus(), document.execCommand("insertText", false, '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"made"},"data":{"a":"b"}}'))`)
		b.click("button", "Preview")
		b.see("would be created")
		b.click("button", "Apply")
		b.see(": created")
		eventually(t, "b", "get", "configmap/made", "-n", "default", "-o", "jsonpath={.data.a}")
	})
	t.Run("delete", func(t *testing.T) {
		b := on(t)
		b.open("/r/apps/v1/deployments/default/broken")
		b.click("button", "Delete…")
		b.see("replicasets")
		b.shot("delete")
		b.click("dialog button", "Delete")
		b.see("Deleting broken")
		b.until(`location.pathname === "/r/apps/v1/deployments"`)
		eventually(t, "NotFound", "get", "deployment/broken")
	})
	t.Run("delete selected", func(t *testing.T) {
		b := on(t)
		b.open("/r/core/v1/configmaps?ns=default&q=made")
		b.until(`document.querySelector("[role=row] input")`)
		b.until(`(document.querySelector(".table").focus(), true)`)
		b.press(" ")
		b.click("button", "Delete 1")
		b.click("dialog button.danger", "Delete")
		b.see("Nothing matches the filter")
		eventually(t, "NotFound", "get", "configmap/made")
	})
	t.Run("cordon", func(t *testing.T) {
		b := on(t)
		node := kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
		b.open("/r/core/v1/nodes/-/" + node)
		b.click("button", "Cordon")
		eventually(t, "true", "get", "node/"+node, "-o", "jsonpath={.spec.unschedulable}")
		b.click("button", "Uncordon")
		b.see("accepts pods")
		if out := kubectl(t, "get", "node/"+node, "-o", "jsonpath={.spec.unschedulable}"); out != "" {
			t.Errorf("unschedulable is %s", out)
		}
	})
	t.Run("drain", func(t *testing.T) {
		b := on(t)
		node := kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
		old := kubectl(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}")
		b.open("/r/core/v1/nodes/-/" + node)
		b.click("button", "Drain…")
		b.see("No controller creates these again: client")
		b.click("dialog button", "Drain")
		b.see("Drained")
		eventually(t, "NotFound", "get", "pod/client")
		kubectl(t, "uncordon", node)
		eventually(t, "NotFound", "get", "pod/"+old)
		deploy(t)
	})
	t.Run("suspend", func(t *testing.T) {
		b := on(t)
		b.open("/r/batch/v1/cronjobs/default/nightly")
		b.click("button", "Suspend")
		eventually(t, "true", "get", "cronjob/nightly", "-o", "jsonpath={.spec.suspend}")
		b.click("button", "Run now")
		b.see("Created a Job of nightly")
		eventually(t, "nightly-", "get", "jobs", "-o", "name")
	})
	t.Run("terminal", func(t *testing.T) {
		b := on(t)
		kubectl(t, "wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
		b.open("/r/core/v1/pods/default/client?tab=terminal")
		b.fill("input[name=command]", "/hyperkube version")
		b.click("button", "Connect again")
		b.until(`document.querySelector(".xterm-rows, .xterm-accessibility")?.textContent.includes("v1.")`)
		b.clean()
	})
	t.Run("debug", func(t *testing.T) {
		b := on(t)
		b.open("/r/core/v1/pods/default/client")
		b.click("button", "Debug…")
		b.fill("dialog input", image(t))
		b.click("dialog button", "Add container")
		b.see("Added container debugger-")
		eventually(t, "debugger-", "get", "pod/client", "-o", "jsonpath={.spec.ephemeralContainers[*].name}")
	})
	t.Run("logs", func(t *testing.T) {
		b := on(t)
		b.open("/r/core/v1/pods/default/client?tab=logs")
		b.until(`document.querySelector(".line")`)
		lines := `Number(document.querySelector(".toolbar .muted").textContent.split(" ")[0])`
		before := b.eval("String(" + lines + ")")
		b.until(lines + " > " + before) // it follows
		b.fill("input[type=search]", "nothing matches this")
		b.see("0 of")
	})
	b.clean()
}

// TestDenied shows the dashboard to a user who may only read pods of one namespace.
func TestDenied(t *testing.T) {
	deploy(t)
	kubectl(t, "create", "serviceaccount", "reader", "--dry-run=client", "-o", "yaml")
	apply(t, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: default}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
`)
	token := strings.TrimSpace(kubectl(t, "create", "token", "reader", "-n", "default"))
	config := kubectl(t, "config", "view", "--minify", "--raw", "-o", "json")
	var parsed map[string]any
	if err := json.Unmarshal([]byte(config), &parsed); err != nil {
		t.Fatal(err)
	}
	parsed["users"].([]any)[0].(map[string]any)["user"] = map[string]any{"token": token}
	data, err := json.Marshal(parsed)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	b := newTab(t, serve(t, "--kubeconfig", file))
	b.see("Not permitted")
	b.see("cannot list resource")
	b.shot("denied")
	b.open("/r/core/v1/pods?ns=default")
	b.see("client")
	b.open("/r/core/v1/pods/default/client?tab=events")
	b.see("Not permitted")
	b.open("/r/core/v1/secrets?ns=default")
	b.see("Not permitted")
	b.open("/r/core/v1/pods/default/client")
	b.click("button", "Delete…")
	b.click("dialog button.danger", "Delete")
	b.see("cannot delete resource")
	kubectl(t, "get", "pod/client")
	for _, p := range b.taken() {
		if !strings.Contains(p, "403") {
			t.Errorf("the browser logged: %s", p)
		}
	}
}

// TestReconnect restarts the API server, and then the dashboard.
func TestReconnect(t *testing.T) {
	deploy(t)
	b := newTab(t, serve(t, "--port", "18080"))
	b.open("/r/core/v1/configmaps?ns=default")
	b.see("kube-root-ca.crt")
	root := os.Getenv(insideEnv)
	if _, err := os.Stat(filepath.Join(root, "external")); err != nil {
		for _, args := range [][]string{{"stop", "--root", root}, {"up", "--root", root}} {
			if out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput(); err != nil {
				t.Fatalf("hyperkube %s: %v\n%s", args[0], err, out)
			}
		}
	}
	kubectl(t, "create", "configmap", "after-restart")
	b.see("after-restart")
	kubectl(t, "delete", "configmap", "after-restart")
	b.until(`!document.body.innerText.includes("after-restart")`)
}

// TestKeyboard goes to a page, filters and opens an object with the keyboard only, and returns.
func TestKeyboard(t *testing.T) {
	deploy(t)
	b := newTab(t, serve(t))
	b.see("Pods by node")
	b.press("/")
	b.see("Go to")
	b.until(`document.activeElement.matches("dialog input")`)
	b.run(chromedp.KeyEvent("depl"))
	b.see("Deployment")
	b.press(kb.Enter)
	b.until(`location.pathname === "/r/apps/v1/deployments"`)
	b.until(`document.querySelector("[role=row][id]")`)
	b.until(`(document.querySelector(".table").focus(), true)`)
	b.press(kb.End)
	b.press(kb.Enter)
	b.until(`location.pathname.startsWith("/r/apps/v1/deployments/")`)
	b.until(`document.activeElement.id === "main"`)
	b.run(chromedp.NavigateBack())
	b.until(`location.pathname === "/r/apps/v1/deployments"`)
	b.press("/")
	b.until(`document.querySelector("dialog[open]")`)
	b.press(kb.Escape)
	b.until(`!document.querySelector("dialog[open]")`)
	b.clean()
}

// rules returns the source of axe-core.
func rules(t *testing.T) string {
	t.Helper()
	f, err := os.Open("testdata/axe.min.js.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestAccessibility checks the rules of axe-core for WCAG 2 AA on each page, in both themes and on a narrow screen.
func TestAccessibility(t *testing.T) {
	deploy(t)
	axe := rules(t)
	b := newTab(t, serve(t))
	for _, mode := range []struct {
		name, theme   string
		width, height int64
	}{{"light", "light", 1280, 800}, {"dark", "dark", 1280, 800}, {"narrow", "light", 390, 800}} {
		if _, err := chromedp.Call(b.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: mode.width, Height: mode.height, DeviceScaleFactor: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: mode.theme}}}); err != nil {
			t.Fatal(err)
		}
		for _, p := range []struct{ name, path, text string }{
			{"overview", "/", "Pods by node"},
			{"list", "/r/core/v1/pods", "kube-dns"},
			{"deployment", "/r/apps/v1/deployments/default/web", "Replica sets"},
			{"pod", "/r/core/v1/pods/default/client", "Containers"},
			{"yaml", "/r/apps/v1/deployments/default/web?tab=yaml", "apiVersion"},
			{"logs", "/r/core/v1/pods/default/client?tab=logs", "Download"},
			{"events", "/r/core/v1/pods/default/client?tab=events", "Last seen"},
			{"terminal", "/r/core/v1/pods/default/client?tab=terminal", "Command"},
			{"create", "/create", "Apply"},
			{"access", "/access", "You are"},
			{"health", "/health", "The API server is ready"},
			{"network", "/network?ns=default&pod=default/client", "May connect to it"},
			{"storage", "/storage", "Classes"},
			{"log-search", "/logs", "Log collection is off"},
			{"forwards", "/forwards", "No port is forwarded"},
			{"types", "/types", "Lease"},
		} {
			t.Run(mode.name+"/"+p.name, func(t *testing.T) {
				b := &tab{T: t, ctx: b.ctx, url: b.url, events: b.events}
				b.open(p.path)
				b.see(p.text)
				b.until(`!document.querySelector(".loading")`)
				b.shot(mode.name + "-" + p.name)
				b.axe(axe)
				if wide := b.eval(`String(document.documentElement.scrollWidth > innerWidth)`); wide == "true" {
					t.Error("the page is wider than the screen")
				}
			})
		}
	}
}

// axe runs axe-core and reports what it finds.
func (b *tab) axe(source string) {
	b.Helper()
	result, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](source+`;
		axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }).then((r) =>
			r.violations.flatMap((v) => v.nodes.map((n) => v.id + ": " + n.html.slice(0, 160) + " " + n.failureSummary)).join("\n"))`,
		func(p *runtime.EvaluateParams) { yes := true; p.AwaitPromise = &yes }))
	if err != nil {
		b.Fatal(err)
	}
	if result != "" {
		b.Error(result)
	}
}
