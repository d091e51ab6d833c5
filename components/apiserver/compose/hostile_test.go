package compose_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var long = flag.Bool("long", false, "with 10,000 idle connections, 1,000 watches and 1,000 requests measured")

// TestHostile measures what one user notices while another does what hurts:
// lists of everything as fast as they come, watches, bodies that trickle, and
// connections without requests. The user must be served; how soon is told.
func TestHostile(t *testing.T) {
	idle, watches, requests := 200, 200, 40
	if *long {
		idle, watches, requests = 10_000, 1_000, 1_000
	}
	e := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	config := func(name string) *clientrest.Config {
		rc, err := clientcmd.BuildConfigFromFlags("", e.conf)
		if err != nil {
			t.Fatal(err)
		}
		rc.QPS = -1
		// With a dialer of its own nobody shares a connection, and its limit
		// of streams, with another.
		rc.Dial = (&net.Dialer{}).DialContext
		if name != "" {
			rc.Impersonate = clientrest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
		}
		return rc
	}
	admin, good := kubernetes.NewForConfigOrDie(config("")), kubernetes.NewForConfigOrDie(config("good"))
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
	measure := func(when string) {
		var gets, creates []time.Duration
		for i := range requests {
			began := time.Now()
			if _, err := good.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(when, i)}}, metav1.CreateOptions{}); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			creates = append(creates, time.Since(began))
			began = time.Now()
			if _, err := good.CoreV1().ConfigMaps("default").Get(ctx, fmt.Sprint(when, i), metav1.GetOptions{}); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			gets = append(gets, time.Since(began))
		}
		for _, all := range [][]time.Duration{gets, creates} {
			slices.Sort(all)
		}
		t.Logf("%s: GET p50 %v p99 %v, CREATE p50 %v p99 %v", when,
			gets[len(gets)/2], gets[len(gets)*99/100], creates[len(creates)/2], creates[len(creates)*99/100])
	}
	measure("calm")

	bad := config("bad")
	address, err := url.Parse(bad.Host)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bad.CAData)
	var mu sync.Mutex
	var conns []net.Conn
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	}()
	for i := range idle {
		conn, err := tls.Dial("tcp", address.Host, &tls.Config{RootCAs: pool})
		if err != nil {
			t.Fatalf("after %d connections: %v", i, err)
		}
		conns = append(conns, conn)
	}
	// Bodies that come a byte at a time.
	for range 50 {
		transport, err := clientrest.HTTPClientFor(config("bad"))
		if err != nil {
			t.Fatal(err)
		}
		body, slow := io.Pipe()
		wg.Go(func() {
			defer slow.Close()
			for ctx.Err() == nil {
				_, _ = slow.Write([]byte(" "))
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
		wg.Go(func() { send(ctx, transport, http.MethodPost, bad.Host+"/api/v1/namespaces/default/configmaps", body) })
	}
	var begun, lists atomic.Int64
	client, err := clientrest.HTTPClientFor(config("bad"))
	if err != nil {
		t.Fatal(err)
	}
	for range watches {
		wg.Go(func() {
			begun.Add(1)
			for ctx.Err() == nil {
				send(ctx, client, http.MethodGet, bad.Host+"/api/v1/namespaces?watch=1", nil)
			}
		})
	}
	for range 50 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if send(ctx, client, http.MethodGet, bad.Host+"/api/v1/configmaps", nil) == http.StatusOK {
					lists.Add(1)
				}
			}
		})
	}
	measure("hostile")
	t.Logf("meanwhile: %d lists of 10 MB, %d watches, %d idle connections", lists.Load(), begun.Load(), idle)
}

// send sends a request, reads all of the answer and returns its status; zero
// without one.
func send(ctx context.Context, client *http.Client, method, url string, body io.Reader) int {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}
