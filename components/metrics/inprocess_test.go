package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"hyperkube/internal/serving/metricshistory"
)

// kubelet is a transport that responds as a kubelet whose node uses half a core.
type kubelet struct {
	began   time.Time
	scrapes atomic.Int64
}

func (k *kubelet) RoundTrip(req *http.Request) (*http.Response, error) {
	k.scrapes.Add(1)
	now := time.Now()
	text := kubeletSummary(now.Unix(), now.Sub(k.began).Seconds()/2, 0)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text)), Request: req}, nil
}

func (*kubelet) CloseIdleConnections() {}

// idleControlPlane is a control plane without requests, whose database size is unknown.
type idleControlPlane struct{}

func (idleControlPlane) Requests() (all, failed int64, seconds float64) { return 5, 0, 1 }
func (idleControlPlane) DatabaseSize() (int64, error)                   { return 0, errors.New("no database") }
func (idleControlPlane) QueueDepth() float64                            { return 3 }

// TestInProcess requests usage, pauses, and requests it again. Kubelets are scraped only while usage is
// requested, and every response has usage.
func TestInProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
		inf := informers.NewSharedInformerFactory(fake.NewClientset(node), 0)
		k := &kubelet{began: time.Now()}
		served := &Switch{}
		s, err := NewInProcess(InProcessConfig{Informers: inf, Kubelets: k, History: served, ControlPlane: idleControlPlane{}, NodeName: "n", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer inf.Shutdown()
		defer cancel()
		inf.StartWithContext(ctx)
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()

		get := func(path, want string) {
			t.Helper()
			w := &httptest.ResponseRecorder{Body: &bytes.Buffer{}}
			s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, prefix+"/v1beta1"+path, nil))
			if body := w.Body.String(); !strings.Contains(body, want) {
				t.Errorf("%s: %d %s", path, w.Code, body)
			}
		}
		scrapes := func(want int64) {
			t.Helper()
			synctest.Wait()
			if got := k.scrapes.Swap(0); got != want {
				t.Errorf("%d scrapes, want %d", got, want)
			}
		}
		get("", `"kind":"NodeMetrics"`)
		time.Sleep(time.Hour)
		scrapes(0) // neither time nor discovery causes scrapes
		get("/nodes/n", `"cpu":"500m"`)
		scrapes(2)
		time.Sleep(resolution)
		scrapes(1)
		get("/nodes", `"cpu":"500m"`)
		scrapes(0)
		time.Sleep(time.Hour)
		scrapes(int64(idleAfter / resolution))
		began := time.Now()
		get("/nodes", `"window":"1s"`)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("response after %v", took)
		}
		scrapes(2)
		time.Sleep(time.Hour)
		scrapes(int64(idleAfter / resolution))

		// The history needs scrapes without requests.
		served.Set(true)
		time.Sleep(historyDelay - time.Millisecond)
		scrapes(0)
		time.Sleep(10 * time.Minute)
		scrapes(42) // one more, because the first two are a second apart
		w := &httptest.ResponseRecorder{Body: &bytes.Buffer{}}
		s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, historyPrefix+"/nodes/n", nil))
		var h metricshistory.History
		if err := json.Unmarshal(w.Body.Bytes(), &h); err != nil {
			t.Fatal(err)
		}
		cpu := h.Series[metricshistory.CPU].Values
		if len(cpu) != 41 || !math.IsNaN(float64(cpu[0])) || slices.ContainsFunc(cpu[1:], func(v float32) bool { return v != 0.5 }) {
			t.Errorf("the history of the CPU usage is %v", cpu)
		}
		w = &httptest.ResponseRecorder{Body: &bytes.Buffer{}}
		s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, historyPrefix+"/controlplanes/n?range=15s", nil))
		for _, want := range []string{`"queueDepth":{"values":[3]}`, `"requests":{"values":[0]}`, `"latency":{"values":[null]}`, `"databaseSize":{"values":[null]}`} {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s is not in the history of the control plane: %s", want, w.Body)
			}
		}
		served.Set(false)
		time.Sleep(time.Hour)
		k.scrapes.Store(0)
		time.Sleep(time.Hour)
		scrapes(0)
		if keys := s.historyAPI.store.Keys(metricshistory.Nodes, ""); len(keys) > 0 {
			t.Errorf("the history has %v after it was disabled", keys)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
