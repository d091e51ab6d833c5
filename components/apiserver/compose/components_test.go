package compose

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/testing/testetcd"
)

// TestComponents reads ComponentStatuses, which are computed for each request.
func TestComponents(t *testing.T) {
	s := &Server{cfg: Config{Components: map[string]func(context.Context) (string, error){
		"scheduler":          func(context.Context) (string, error) { return "ok", nil },
		"controller-manager": func(context.Context) (string, error) { return "", errors.New("it is ill") },
	}}}
	server, err := apiserver.New(apiserver.Config{Etcd: testetcd.Client(t), Extend: func(reg *registry.Registry) error { return s.components(reg) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	warned := &warnings{}
	cfg := server.ClientConfig("admin", "system:masters")
	cfg.WarningHandler = warned
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	list, err := kube.CoreV1().ComponentStatuses().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range list.Items {
		got = append(got, c.Name+" "+string(c.Conditions[0].Type)+"="+string(c.Conditions[0].Status)+" "+c.Conditions[0].Message)
	}
	if want := "controller-manager Healthy=False it is ill, etcd-0 Healthy=True ok, scheduler Healthy=True ok"; strings.Join(got, ", ") != want {
		t.Errorf("got %s", strings.Join(got, ", "))
	}
	if !strings.Contains(strings.Join(warned.texts, " "), "v1 ComponentStatus is deprecated in v1.19+") {
		t.Errorf("warned of %q", warned.texts)
	}
	one, err := kube.CoreV1().ComponentStatuses().Get(ctx, "scheduler", metav1.GetOptions{})
	if err != nil || one.Conditions[0].Status != corev1.ConditionTrue {
		t.Errorf("got %v, %v", one, err)
	}
	if _, err := kube.CoreV1().ComponentStatuses().Get(ctx, "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
	raw, err := kube.CoreV1().RESTClient().Get().Resource("componentstatuses").SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
	var table metav1.Table
	if err == nil {
		err = json.Unmarshal(raw, &table)
	}
	if err != nil || len(table.Rows) != 3 || table.Rows[0].Cells[1] != "Unhealthy" {
		t.Errorf("got %s, %v", raw, err)
	}
	if one.ResourceVersion != "" || list.ResourceVersion != "" || list.Items[0].ResourceVersion != "" || table.ResourceVersion != "" {
		t.Errorf("what is not stored has a version: %v, %v, %v", one, list, table)
	}
	if list, err := kube.CoreV1().ComponentStatuses().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=etcd-0"}); err != nil || len(list.Items) != 1 {
		t.Errorf("got %v, %v", list, err)
	}
}

type warnings struct{ texts []string }

func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }
