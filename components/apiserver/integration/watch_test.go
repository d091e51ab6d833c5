package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"hyperkube/components/apiserver"
)

// kubeOf returns a clientset that uses JSON or protobuf.
func kubeOf(t testing.TB, s *apiserver.Server, contentType string) kubernetes.Interface {
	t.Helper()
	rc := admin(s)
	rc.ContentType = contentType
	kube, err := kubernetes.NewForConfig(rc)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

const protobuf = "application/vnd.kubernetes.protobuf"

func contextOf(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// next returns the next event. It fails the test if there is none.
func next(t testing.TB, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case ev, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch ended")
		}
		return ev
	case <-time.After(2 * time.Minute):
		t.Fatal("no event")
	}
	return watch.Event{}
}

func expect(t testing.TB, w watch.Interface, kind watch.EventType, name string) metav1.Object {
	t.Helper()
	ev := next(t, w)
	if ev.Type != kind {
		t.Fatalf("event is %s %+v, not %s of %s", ev.Type, ev.Object, kind, name)
	}
	obj, ok := ev.Object.(metav1.Object)
	if !ok || obj.GetName() != name {
		t.Fatalf("event is of %+v, not of %s", ev.Object, name)
	}
	return obj
}

func TestWatch(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	for i, contentType := range []string{"application/json", protobuf} {
		t.Run(contentType, func(t *testing.T) {
			ctx := contextOf(t)
			kube := kubeOf(t, s, contentType)
			ns := fmt.Sprintf("watch-%d", i)
			cms := kube.CoreV1().ConfigMaps(ns)
			make := func(name string, labels map[string]string) *corev1.ConfigMap {
				t.Helper()
				cm, err := cms.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return cm
			}
			label := func(name, value string) *corev1.ConfigMap {
				t.Helper()
				cm, err := cms.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"`+value+`"}}}`), metav1.PatchOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return cm
			}
			first := make("a", map[string]string{"x": "y"})

			selected, err := cms.Watch(ctx, metav1.ListOptions{LabelSelector: "x=y"})
			if err != nil {
				t.Fatal(err)
			}
			defer selected.Stop()
			expect(t, selected, watch.Added, "a") // the existing object
			left := label("a", "z")
			if obj := expect(t, selected, watch.Deleted, "a"); obj.GetResourceVersion() != left.ResourceVersion || obj.GetLabels()["x"] != "y" {
				t.Errorf("left the selector at %s %v, not %s", obj.GetResourceVersion(), obj.GetLabels(), left.ResourceVersion)
			}
			label("a", "y")
			expect(t, selected, watch.Added, "a")

			single, err := cms.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=b", ResourceVersion: first.ResourceVersion})
			if err != nil {
				t.Fatal(err)
			}
			defer single.Stop()
			make("b", nil)
			expect(t, single, watch.Added, "b")
			if err := cms.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			gone := expect(t, single, watch.Deleted, "b")

			// All changes after a version, in order.
			all, err := cms.Watch(ctx, metav1.ListOptions{ResourceVersion: first.ResourceVersion})
			if err != nil {
				t.Fatal(err)
			}
			defer all.Stop()
			expect(t, all, watch.Modified, "a")
			expect(t, all, watch.Modified, "a")
			expect(t, all, watch.Added, "b")
			if obj := expect(t, all, watch.Deleted, "b"); obj.GetResourceVersion() != gone.GetResourceVersion() {
				t.Errorf("deleted at %s and %s", obj.GetResourceVersion(), gone.GetResourceVersion())
			}

			// A streaming list, terminated by a bookmark.
			yes := true
			streamed, err := cms.Watch(ctx, metav1.ListOptions{
				SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer streamed.Stop()
			expect(t, streamed, watch.Added, "a")
			if ev := next(t, streamed); ev.Type != watch.Bookmark || ev.Object.(metav1.Object).GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
				t.Errorf("no bookmark: %+v", ev)
			}

			seconds := int64(2)
			short, err := cms.Watch(ctx, metav1.ListOptions{TimeoutSeconds: &seconds})
			if err != nil {
				t.Fatal(err)
			}
			expect(t, short, watch.Added, "a")
			if ev, ok := <-short.ResultChan(); ok {
				t.Errorf("after its time: %+v", ev)
			}

			old, err := cms.Watch(ctx, metav1.ListOptions{ResourceVersion: "1"})
			if err == nil {
				defer old.Stop()
				ev := next(t, old)
				if ev.Type == watch.Error && !apierrors.IsResourceExpired(apierrors.FromObject(ev.Object)) {
					t.Errorf("too old: %+v", ev.Object)
				}
			}
		})
	}
}

// TestBookmarks checks that bookmarks report progress although the resource does not change.
func TestBookmarks(t *testing.T) {
	s := startServer(t, apiserver.Config{BookmarkEvery: 50 * time.Millisecond})
	ctx := contextOf(t)
	kube := kubeOf(t, s, protobuf)
	w, err := kube.CoreV1().ConfigMaps("").Watch(ctx, metav1.ListOptions{AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	ns, err := kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := strconv.ParseInt(ns.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for {
		ev := next(t, w)
		if ev.Type != watch.Bookmark {
			t.Fatalf("%+v", ev)
		}
		progress, err := strconv.ParseInt(ev.Object.(metav1.Object).GetResourceVersion(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if progress >= made {
			return
		}
	}
}

func TestInformers(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	ctx := contextOf(t)
	kube := kubeOf(t, s, protobuf)
	rc := admin(s)
	dyn, err := dynamic.NewForConfig(rc)
	if err != nil {
		t.Fatal(err)
	}
	meta, err := metadata.NewForConfig(rc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	typed := informers.NewSharedInformerFactory(kube, 0)
	partial := metadatainformer.NewSharedInformerFactory(meta, 0)
	found := map[string]cache.SharedIndexInformer{
		"typed":    typed.Core().V1().ConfigMaps().Informer(),
		"metadata": partial.ForResource(corev1.SchemeGroupVersion.WithResource("configmaps")).Informer(),
	}
	typed.Start(ctx.Done())
	partial.Start(ctx.Done())
	for name, i := range found {
		if !cache.WaitForCacheSync(ctx.Done(), i.HasSynced) {
			t.Fatalf("%s informer does not fill", name)
		}
		if n := len(i.GetStore().List()); n != 1 {
			t.Errorf("%s informer has %d", name, n)
		}
	}
	list, err := dyn.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetKind() != "ConfigMap" {
		t.Errorf("dynamic: %+v %v", list, err)
	}
}

// TestTableWatch checks the watch format that kubectl get -w uses.
func TestTableWatch(t *testing.T) {
	s := startServer(t, apiserver.Config{})
	a := newAPI(t, s)
	a.do("POST", cms, `{"metadata":{"name":"a"}}`, jsn)
	c, err := clientrest.HTTPClientFor(admin(s))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(contextOf(t), "GET", "http://x"+cms+"?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	frames := json.NewDecoder(resp.Body)
	for i, want := range []string{"ADDED", "ADDED", "DELETED"} {
		switch i {
		case 1:
			a.do("POST", cms, `{"metadata":{"name":"b"}}`, jsn)
			a.do("DELETE", cms+"/b", "")
		}
		var ev struct {
			Type   string
			Object metav1.Table
		}
		if err := frames.Decode(&ev); err != nil {
			t.Fatal(err)
		}
		if ev.Type != want || len(ev.Object.Rows) != 1 || (len(ev.Object.ColumnDefinitions) > 0) != (i == 0) {
			t.Errorf("%d: %s %+v", i, ev.Type, ev.Object)
		}
	}
}

// TestWebSocketWatch checks watches over WebSocket, which browsers use.
func TestWebSocketWatch(t *testing.T) {
	k, s := newKubectl(t, apiserver.Config{})
	newAPI(t, s).do("POST", cms, `{"metadata":{"name":"a"}}`, jsn)
	rc, err := clientcmd.BuildConfigFromFlags("", k.config)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig, err := clientrest.TLSConfigFor(rc)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := websocket.NewConfig(strings.Replace(rc.Host, "https://", "wss://", 1)+cms+"?watch=true", rc.Host)
	if err != nil {
		t.Fatal(err)
	}
	cfg.TlsConfig = tlsConfig
	conn, err := cfg.DialContext(contextOf(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var message string
	if err := websocket.Message.Receive(conn, &message); err != nil || !strings.HasPrefix(message, `{"type":"ADDED","object":{"kind":"ConfigMap"`) {
		t.Errorf("%q %v", message, err)
	}
}
