package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// insideEnv is set in the process that runs the tests in its own namespaces. Its value is the root of the cluster.
const insideEnv = "HYPERKUBE_BROWSER_ROOT"

// binary is the program to test. It is empty if the tests are to be skipped.
var binary = os.Getenv("HYPERKUBE_E2E")

// TestMain runs the tests in a new network and mount namespace, in which it starts a cluster.
func TestMain(m *testing.M) {
	if binary == "" {
		os.Exit(m.Run())
	}
	root := os.Getenv(insideEnv)
	if root == "" {
		os.Exit(inside())
	}
	os.Exit(func() int {
		if _, err := os.Stat(filepath.Join(root, "external")); err == nil {
			return m.Run() // the cluster runs already
		}
		defer func() { _ = exec.Command(binary, "reset", "--root", root).Run() }()
		if out, err := exec.Command(binary, "up", "--root", root).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "starting a cluster: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// inside runs this program again in new namespaces and returns its exit code.
func inside() int {
	root, err := os.MkdirTemp("", "browser-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(root)
	args := append([]string{"--net", "--mount", "sh", "-c", `ip link set lo up && exec "$0" "$@"`}, os.Args...)
	cmd := exec.Command("unshare", args...)
	cmd.Env = append(os.Environ(), insideEnv+"="+root, "KUBECONFIG="+filepath.Join(root, "kubeconfig"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// tab is a tab of the browser that shows a dashboard.
type tab struct {
	*testing.T
	ctx context.Context
	url string // of the dashboard, without the token
	*events
}

// events are the problems that the browser has reported. It is safe for concurrent use.
type events struct {
	mu       sync.Mutex
	problems []string
}

// kubectl runs kubectl as the administrator and returns its output.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), binary, append([]string{"kubectl"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// apply applies a manifest.
func apply(t *testing.T, manifest string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, "kubectl", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// image returns the reference of the built-in image.
func image(t *testing.T) string {
	return kubectl(t, "-n", "kube-system", "get", "deployment", "kube-dns", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
}

// serve runs a dashboard until the test ends and returns its URL with the token.
func serve(t *testing.T, args ...string) string {
	t.Helper()
	program := []string{binary, "dashboard"}
	if dev := os.Getenv("HYPERKUBE_DASHBOARD"); dev != "" {
		program = []string{dev}
	}
	cmd := exec.CommandContext(t.Context(), program[0], append(append(program[1:], "--no-browser"), args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	line := make([]byte, 1024)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = out.Read(line) }()
	found := regexp.MustCompile(`http\S+`).FindString(string(line[:n]))
	if found == "" {
		t.Fatalf("the dashboard printed no URL: %s", line[:n])
	}
	return found
}

// newTab starts a browser with more options and opens a URL.
func newTab(t *testing.T, url string, more ...chromedp.ExecAllocatorOption) *tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.WindowSize(1280, 800), chromedp.Flag("lang", "en"))
	options = append(options, more...)
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	b := &tab{T: t, ctx: ctx, events: &events{}}
	b.url, _, _ = strings.Cut(url, "#")
	err := chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *log.EventEntryAdded:
			if strings.Contains(e.Entry.URL, "/apis/history.metrics.hyperkube.io/") && (strings.Contains(e.Entry.Text, "404") || strings.Contains(e.Entry.Text, "503")) {
				return // there are no samples yet, which the page shows
			}
			if e.Entry.Level == log.EntryLevelError || strings.Contains(e.Entry.Text, "Content Security Policy") {
				b.problems = append(b.problems, e.Entry.Text+" "+e.Entry.URL)
			}
		case *cdpruntime.EventExceptionThrown:
			b.problems = append(b.problems, e.ExceptionDetails.Text+" "+describe(e.ExceptionDetails.Exception))
		case *network.EventRequestWillBeSent:
			if !strings.HasPrefix(e.Request.URL, b.url) && !strings.HasPrefix(e.Request.URL, "data:") && !strings.HasPrefix(e.Request.URL, "blob:") {
				b.problems = append(b.problems, "a request to another host: "+e.Request.URL)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	b.run(chromedp.Navigate(url))
	// The page has exchanged the token when it shows something.
	b.until(`document.querySelector("main")`)
	return b
}

// describe returns the text of an exception.
func describe(o *cdpruntime.RemoteObject) string {
	if o == nil {
		return ""
	}
	return o.Description
}

// run runs actions of the browser.
func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.fail(err.Error())
	}
}

// fail fails the test and logs what the page shows.
func (b *tab) fail(reason string) {
	b.Helper()
	b.shot("failure")
	text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.body.innerText.slice(0, 2000)`))
	b.Fatalf("%s\nThe page shows:\n%s\nThe browser logged: %q", reason, text, b.taken())
}

// until waits until an expression is true. The page's Content-Security-Policy does not permit chromedp.Poll.
func (b *tab) until(js string) {
	b.Helper()
	deadline := time.After(20 * time.Second)
	for {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+js+")"))
		if err != nil {
			b.fail(err.Error())
		}
		if ok {
			return
		}
		select {
		case <-deadline:
			b.fail("not true within 20 s: " + js)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// open opens a page by its path.
func (b *tab) open(path string) {
	b.Helper()
	b.run(chromedp.Navigate(strings.TrimSuffix(b.url, "/") + path))
}

// see waits until the page shows a text.
func (b *tab) see(text string) {
	b.Helper()
	b.until(fmt.Sprintf(`document.body && document.body.innerText.includes(%q)`, text))
}

// click clicks the element of a CSS selector that contains a text.
func (b *tab) click(selector, text string) {
	b.Helper()
	b.until(fmt.Sprintf(`(() => {
		const e = [...document.querySelectorAll(%q)].find((e) => e.textContent.trim().includes(%q) && !e.disabled);
		if (e) e.click();
		return !!e;
	})()`, selector, text))
}

// eval returns the value of an expression that is a string.
func (b *tab) eval(js string) string {
	b.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](js))
	if err != nil {
		b.fail(err.Error())
	}
	return value
}

// shot writes a screenshot to the directory $HYPERKUBE_SCREENSHOTS, if it is set.
func (b *tab) shot(name string) {
	b.Helper()
	dir := os.Getenv("HYPERKUBE_SCREENSHOTS")
	if dir == "" {
		return
	}
	data, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Error(err)
		return
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), data, 0o644); err != nil {
		b.Error(err)
	}
}

// taken returns the problems since the last call.
func (e *events) taken() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	problems := e.problems
	e.problems = nil
	return problems
}

// clean fails the test if the browser has logged errors, a violation of the Content-Security-Policy or a request to another
// host.
func (b *tab) clean() {
	b.Helper()
	for _, p := range b.taken() {
		b.Errorf("the browser logged: %s", p)
	}
}
