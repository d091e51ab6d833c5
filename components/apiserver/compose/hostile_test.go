package compose_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var (
	long    = flag.Bool("long", false, "with 10,000 idle connections, 1,000 watches and 1,000 requests measured")
	attacks = flag.String("attacks", "idle,bodies,stalled,watches,lists,heavy,writes,handshakes", "what TestHostile does to the server")
)

// Environment variables of the processes that TestHostile starts: their role and their kubeconfig.
const (
	roleEnv = "HYPERKUBE_TEST_ROLE"
	confEnv = "HYPERKUBE_TEST_CONF"
)

// TestHostile measures the latency of one user's requests while another user attacks the server
// with constant lists of everything, watches, slow request bodies, new connections, and idle
// connections. The first user's requests must succeed. The latency is logged. Both users are
// separate processes on the same machine.
func TestHostile(t *testing.T) {
	e := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	admin := kubernetes.NewForConfigOrDie(as(t, e.conf, ""))
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "hostile"},
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: "good", APIGroup: rbacv1.GroupName}, {Kind: "User", Name: "bad", APIGroup: rbacv1.GroupName}},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: "cluster-admin", APIGroup: rbacv1.GroupName},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("big", i)}, Data: map[string]string{"k": strings.Repeat("v", 20_000)}}
		if _, err := admin.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	role := func(name string) (*exec.Cmd, io.WriteCloser, *bufio.Scanner) {
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestHostileRole$", fmt.Sprintf("-long=%v", *long), "-attacks="+*attacks)
		cmd.Env = append(os.Environ(), roleEnv+"="+name, confEnv+"="+e.conf)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, in, bufio.NewScanner(out)
	}
	measure := func(when string) {
		cmd, _, out := role("good:" + when)
		for out.Scan() {
			line, _ := strings.CutPrefix(out.Text(), "> ")
			t.Logf("%s: %s", when, line)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: the user was not served: %v", when, err)
		}
	}
	measure("calm")
	bad, in, output := role("bad")
	defer func() {
		_ = in.Close() // makes the process exit
		for output.Scan() {
			if line, ok := strings.CutPrefix(output.Text(), "> "); ok {
				t.Logf("meanwhile: %s", line)
			}
		}
		if err := bad.Wait(); err != nil {
			t.Errorf("the hostile one: %v", err)
		}
		cancel()
	}()
	measure("beginning")
	for output.Scan() && output.Text() != "> ready" {
		continue
	}
	measure("hostile")
}

// TestHostileRole is the main function of a process that TestHostile starts.
func TestHostileRole(t *testing.T) {
	role, conf := os.Getenv(roleEnv), os.Getenv(confEnv)
	switch when, good := strings.CutPrefix(role, "good:"); {
	case good:
		beGood(t, conf, when)
	case role == "bad":
		beBad(t, conf)
	default:
		t.Skip("no part to play")
	}
}

func as(t *testing.T, conf, name string) *clientrest.Config {
	t.Helper()
	rc, err := clientcmd.BuildConfigFromFlags("", conf)
	if err != nil {
		t.Fatal(err)
	}
	rc.QPS = -1
	// With separate dialers the clients do not share connections and their stream limits.
	rc.Dial = (&net.Dialer{}).DialContext
	if name != "" {
		rc.Impersonate = clientrest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
	}
	return rc
}

// beGood sends ordinary requests one after the other and reports their latency.
func beGood(t *testing.T, conf, when string) {
	requests, length := 40, 10*time.Second
	if *long {
		requests, length = 1_000, time.Hour
	}
	began := time.Now()
	ctx := t.Context()
	kube := kubernetes.NewForConfigOrDie(as(t, conf, "good"))
	var gets, creates, connects []time.Duration
	timed := func(into *[]time.Duration, what string, f func() error) {
		began := time.Now()
		if err := f(); err != nil {
			t.Fatalf("%s after %s: %v", what, time.Since(began), err)
		}
		*into = append(*into, time.Since(began))
	}
	for i := range requests {
		if i > 2 && time.Since(began) > length {
			break // requests succeed; the latency depends on the machine
		}
		name := fmt.Sprint(when, i)
		timed(&creates, "CREATE", func() error {
			_, err := kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil // the client has retried after a 429 response
			}
			return err
		})
		timed(&gets, "GET", func() error {
			_, err := kube.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
			return err
		})
		if i%10 == 0 {
			client, err := clientrest.HTTPClientFor(as(t, conf, "good"))
			if err != nil {
				t.Fatal(err)
			}
			timed(&connects, "GET by a new connection", func() error {
				if code, _ := send(ctx, client, http.MethodGet, as(t, conf, "").Host+"/api/v1/namespaces/default", nil); code != http.StatusOK {
					return fmt.Errorf("status %d", code)
				}
				return nil
			})
			client.CloseIdleConnections()
		}
	}
	for _, c := range []struct {
		what string
		all  []time.Duration
	}{{"GET", gets}, {"CREATE", creates}, {"GET by a new connection", connects}} {
		slices.Sort(c.all)
		fmt.Printf("> %s p50 %v p99 %v max %v\n", c.what, c.all[len(c.all)/2], c.all[len(c.all)*99/100], c.all[len(c.all)-1])
	}
}

// beBad attacks until its standard input is closed.
func beBad(t *testing.T, conf string) {
	idle, watches, slows, stalled := 200, 200, 50, 100
	if *long {
		idle, watches, slows, stalled = 10_000, 1_000, 1_000, 500
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	var wg sync.WaitGroup
	defer wg.Wait()
	does := func(what string) bool { return strings.Contains(*attacks, what) }
	bad := as(t, conf, "bad")
	var begun, watching, lists, refused, connected, shaken, cut, heavy, heavyRefused, written, trickled atomic.Int64
	client, err := clientrest.HTTPClientFor(as(t, conf, "bad"))
	if err != nil {
		t.Fatal(err)
	}
	if does("watches") {
		for range watches {
			wg.Go(func() {
				begun.Add(1)
				for ctx.Err() == nil {
					if code, _ := send(ctx, client, http.MethodGet, bad.Host+"/api/v1/namespaces?watch=1", nil); code == http.StatusOK {
						watching.Add(1)
					}
				}
			})
		}
	}
	if does("lists") {
		for range 50 {
			wg.Go(func() {
				for ctx.Err() == nil {
					switch code, n := send(ctx, client, http.MethodGet, bad.Host+"/api/v1/configmaps", nil); {
					case code == http.StatusOK && n > 10_000_000:
						lists.Add(1)
					default:
						refused.Add(1)
					}
				}
			})
		}
	}
	// Responses that are never read: only the flow control windows fill.
	if does("stalled") {
		for range stalled / 100 {
			client, err := clientrest.HTTPClientFor(as(t, conf, "bad"))
			if err != nil {
				t.Fatal(err)
			}
			for range 100 {
				wg.Go(func() {
					for ctx.Err() == nil {
						req, err := http.NewRequestWithContext(ctx, http.MethodGet, bad.Host+"/api/v1/configmaps", nil)
						if err != nil {
							continue
						}
						resp, err := client.Do(req)
						if err != nil {
							continue
						}
						time.Sleep(time.Second)
						for err == nil && ctx.Err() == nil {
							if _, err = io.CopyN(io.Discard, resp.Body, 1); err == nil {
								select {
								case <-time.After(100 * time.Millisecond):
								case <-ctx.Done():
								}
							}
						}
						resp.Body.Close()
						cut.Add(1)
					}
				})
			}
		}
	}
	// The requests that cost the server most.
	if does("heavy") {
		for _, path := range []string{"/api/v1/configmaps?pretty=true", "/api/v1/configmaps?fieldSelector=metadata.name%3Dbig7", "/api/v1/configmaps?labelSelector=" + strings.Repeat("a%21%3Db,", 5000) + "a"} {
			for _, accept := range []string{"application/yaml", "application/json", "application/json;as=Table;g=meta.k8s.io;v=v1"} {
				for range 4 {
					wg.Go(func() {
						for ctx.Err() == nil {
							if code := get(ctx, client, bad.Host+path, accept); code != http.StatusOK {
								heavyRefused.Add(1)
								continue
							}
							heavy.Add(1)
						}
					})
				}
			}
		}
	}
	if does("writes") {
		for i := range 32 {
			wg.Go(func() {
				kube := kubernetes.NewForConfigOrDie(as(t, conf, "bad")).CoreV1().ConfigMaps("default")
				for n := 0; ctx.Err() == nil; n++ {
					cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("w", i, "-", n)}, Data: map[string]string{}}
					for k := range n % 3 * 3000 {
						cm.Data[fmt.Sprint("k", k)] = "v"
					}
					if _, err := kube.Create(ctx, cm, metav1.CreateOptions{}); err == nil {
						written.Add(1)
						_ = kube.Delete(ctx, cm.Name, metav1.DeleteOptions{})
					}
				}
			})
		}
	}
	// Request bodies that arrive one byte at a time.
	for range slows {
		if !does("bodies") {
			break
		}
		transport, err := clientrest.HTTPClientFor(as(t, conf, "bad"))
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				_, _ = send(ctx, transport, http.MethodPost, bad.Host+"/api/v1/namespaces/default/configmaps", trickle{ctx})
				trickled.Add(1)
			}
		})
	}
	address, err := url.Parse(bad.Host)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bad.CAData)
	dial := func() (net.Conn, error) {
		d := &tls.Dialer{Config: &tls.Config{RootCAs: pool, NextProtos: []string{"h2", "http/1.1"}}}
		return d.DialContext(ctx, "tcp", address.Host)
	}
	var idlers sync.WaitGroup
	var next atomic.Int64
	conns := make([]net.Conn, idle)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	for range 64 {
		if !does("idle") {
			break
		}
		idlers.Go(func() {
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= int64(idle) {
					return
				}
				conn, err := dial()
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						fmt.Printf("> connection %d: %v\n", i, err)
					}
					continue
				}
				connected.Add(1)
				conns[i] = conn
			}
		})
	}
	idlers.Wait()
	// Each new connection costs the server a signature.
	for range 16 {
		if !does("handshakes") {
			break
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				if conn, err := dial(); err == nil {
					conn.Close()
					shaken.Add(1)
				}
			}
		})
	}
	fmt.Println("> ready")
	<-ctx.Done()
	wg.Wait()
	fmt.Printf("> %d lists of 10 MB, %d without their end, %d of %d watches have ended, %d idle connections, %d handshakes, %d stalled lists were cut off, %d heavy requests and %d without success, %d writes, %d slow bodies ended\n",
		lists.Load(), refused.Load(), watching.Load(), begun.Load(), connected.Load(), shaken.Load(), cut.Load(), heavy.Load(), heavyRefused.Load(), written.Load(), trickled.Load())
}

// trickle is an endless body that returns one byte per second.
type trickle struct {
	ctx context.Context //nolint:containedctx // io.Reader has no context
}

func (t trickle) Read(p []byte) (int, error) {
	select {
	case <-t.ctx.Done():
		return 0, t.ctx.Err()
	case <-time.After(time.Second):
		p[0] = ' '
		return 1, nil
	}
}

// get requests a list in the given format and reads it completely.
func get(ctx context.Context, client *http.Client, url, accept string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	req.Header.Set("Accept", accept)
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// send sends a request, reads the complete response and returns its status and size in bytes, or
// zeros on error.
func send(ctx context.Context, client *http.Client, method, url string, body io.Reader) (int, int64) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return 0, 0
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return 0, 0
	}
	defer resp.Body.Close()
	n, _ := io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, n
}
