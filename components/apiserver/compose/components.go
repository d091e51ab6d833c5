package compose

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/host/layout"
	"hyperkube/internal/store"
)

// componentTimeout limits how long a request for ComponentStatuses waits for the health checks of
// all components.
const componentTimeout = 5 * time.Second

// components makes the registry serve ComponentStatuses: the health of the scheduler and the controller manager on
// this host, from their /healthz, and of the main etcd. For components in cfg.Components, as in `hyperkube up`, which
// runs them in this process, it calls the function there instead.
func (s *Server) components(reg *registry.Registry) error {
	looks := map[string]func(context.Context) (string, error){}
	maps.Copy(looks, s.cfg.Components)
	for name, port := range map[string]int{"scheduler": layout.PortScheduler, "controller-manager": layout.PortControllerManager} {
		if looks[name] == nil {
			looks[name] = healthz(fmt.Sprintf("https://127.0.0.1:%d/healthz", port))
		}
	}
	etcd := func(one *store.Store) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) { return "ok", one.Healthy(ctx) }
	}
	looks["etcd-0"] = etcd(reg.Store())
	list := func(ctx context.Context) ([]api.Object, error) {
		ctx, cancel := context.WithTimeout(ctx, componentTimeout)
		defer cancel()
		var mu sync.Mutex // guards found
		found := map[string]*corev1.ComponentStatus{}
		var looking sync.WaitGroup
		for name, look := range looks {
			looking.Go(func() {
				message, err := look(ctx)
				condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: message}
				if err != nil {
					condition.Status, condition.Message = corev1.ConditionFalse, err.Error()
				}
				mu.Lock()
				defer mu.Unlock()
				found[name] = &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Conditions: []corev1.ComponentCondition{condition}}
			})
		}
		looking.Wait()
		var out []api.Object
		for _, name := range []string{"controller-manager", "etcd-0", "scheduler"} {
			if one := found[name]; one != nil {
				one.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ComponentStatus"))
				out = append(out, one)
			}
		}
		return out, nil
	}
	return reg.Compute(schema.GroupResource{Resource: "componentstatuses"}, list)
}

// healthz returns a health check that requests url, the /healthz of a component on this host, and returns the
// response body. A response other than 200 is an error. It does not verify the component's certificate, which is
// self-signed.
func healthz(url string) func(context.Context) (string, error) {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // no secrets are sent to it
		DisableKeepAlives: true,
	}}
	return func(ctx context.Context) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		if err != nil {
			return "", err
		}
		if resp.StatusCode != http.StatusOK {
			return "", fmt.Errorf("HTTP probe failed with statuscode: %d", resp.StatusCode)
		}
		return string(body), nil
	}
}
