package admission

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"

	"hyperkube/components/apiserver/request"
	"hyperkube/components/apiserver/syncgate"
	"hyperkube/internal/api/quota"
)

// amounts parses a list of "name=quantity" words.
func amounts(t testing.TB, words string) corev1.ResourceList {
	t.Helper()
	out := corev1.ResourceList{}
	for w := range strings.FieldsSeq(words) {
		name, q, _ := strings.Cut(w, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	return out
}

func quotaOf(t testing.TB, name, hard, used string, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: "1"},
		Spec:       corev1.ResourceQuotaSpec{Hard: amounts(t, hard), Scopes: scopes},
		Status:     corev1.ResourceQuotaStatus{Hard: amounts(t, hard), Used: amounts(t, used)},
	}
}

func TestResourceQuota(t *testing.T) {
	computing := pod(func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: amounts(t, "cpu=500m"), Limits: amounts(t, "cpu=1")}
	})
	for _, tc := range []struct {
		name   string
		quotas []*corev1.ResourceQuota
		w      write
		err    string
		used   string // usage of the first quota
	}{
		{"no quota", nil, write{resource: "/pods", obj: pod(nil)}, "", ""},
		{"room", []*corev1.ResourceQuota{quotaOf(t, "q", "pods=2 count/pods=3", "pods=1 count/pods=1")}, write{resource: "/pods", obj: pod(nil)}, "", "pods=2 count/pods=2"},
		{"no room", []*corev1.ResourceQuota{quotaOf(t, "q", "pods=2 requests.cpu=1", "pods=1 requests.cpu=750m")}, write{resource: "/pods", obj: computing},
			`is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=750m, limited: requests.cpu=1`, "pods=1 requests.cpu=750m"},
		{"nothing asked for", []*corev1.ResourceQuota{quotaOf(t, "q", "limits.memory=1Gi", "limits.memory=0")}, write{resource: "/pods", obj: computing},
			"failed quota: q: must specify limits.memory for: c", "limits.memory=0"},
		{"not counted yet", []*corev1.ResourceQuota{quotaOf(t, "q", "pods=2", "")}, write{resource: "/pods", obj: pod(nil)}, "status unknown for quota: q, resources: pods", ""},
		{"out of scope", []*corev1.ResourceQuota{quotaOf(t, "q", "pods=0", "pods=0", corev1.ResourceQuotaScopeBestEffort)}, write{resource: "/pods", obj: computing}, "", "pods=0"},
		{"two quotas", []*corev1.ResourceQuota{quotaOf(t, "a", "pods=2", "pods=1"), quotaOf(t, "b", "pods=1", "pods=1")}, write{resource: "/pods", obj: pod(nil)}, "exceeded quota: b", "pods=1"},
		{"a number of others", []*corev1.ResourceQuota{quotaOf(t, "q", "count/things.example.com=1", "count/things.example.com=1")}, write{resource: "example.com/things", obj: pod(nil)},
			"exceeded quota: q, requested: count/things.example.com=1, used: count/things.example.com=1, limited: count/things.example.com=1", "count/things.example.com=1"},
		{"events", []*corev1.ResourceQuota{quotaOf(t, "q", "count/events=0", "count/events=0")}, write{resource: "/events", obj: &corev1.Event{}}, "", "count/events=0"},
		{"a subresource", []*corev1.ResourceQuota{quotaOf(t, "q", "pods=0", "pods=0")}, write{resource: "/pods", sub: "binding", obj: &corev1.Binding{}}, "", "pods=0"},
		{"a service that gets ports", []*corev1.ResourceQuota{quotaOf(t, "q", "services=1 services.nodeports=1", "services=1 services.nodeports=0")}, write{
			op: admission.Update, resource: "/services",
			old: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", ResourceVersion: "1"}},
			obj: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", ResourceVersion: "1"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: make([]corev1.ServicePort, 1)}},
		}, "", "services=1 services.nodeports=1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var objs []runtime.Object
			for _, q := range tc.quotas {
				objs = append(objs, q)
			}
			c, kube := chain(t, Config{}, []string{"ResourceQuota"}, objs...)
			tc.w.ns = "ns"
			err := ask(t, c, tc.w)
			wantErr(t, err, tc.err)
			if tc.err != "" && !apierrors.IsForbidden(err) {
				t.Errorf("not forbidden: %v", err)
			}
			if len(tc.quotas) == 0 {
				return
			}
			q, err := kube.CoreV1().ResourceQuotas("ns").Get(t.Context(), tc.quotas[0].Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if want := amounts(t, tc.used); !sameAmounts(q.Status.Used, want) {
				t.Errorf("used %v, want %v", q.Status.Used, want)
			}
		})
	}
}

func sameAmounts(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	for n, q := range a {
		if other, ok := b[n]; !ok || q.Cmp(other) != 0 {
			return false
		}
	}
	return true
}

// TestResourceQuotaBeforeInformer checks that a quota takes effect before the informer has it.
func TestResourceQuotaBeforeInformer(t *testing.T) {
	kube := fake.NewClientset(quotaOf(t, "q", "pods=1", "pods=1"))
	p := &resourceQuota{kube: kube, lister: corelisters.NewResourceQuotaLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})), gate: syncgate.NewGate(),
		apiCache: newNamespaceCache[*corev1.ResourceQuota](), evaluators: quota.New(nil, time.Now), written: lru.New(writtenQuotasSize), locks: map[string]*namespaceLock{}}
	for range 2 {
		err := p.Validate(t.Context(), admission.NewAttributesRecord(pod(nil), nil, corev1.SchemeGroupVersion.WithKind("Pod"), "ns", "p",
			corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, nil, false, &user.DefaultInfo{Name: "ann"}), nil)
		wantErr(t, err, "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1")
	}
	if asked := len(kube.Actions()); asked != 1 {
		t.Errorf("%d API requests", asked)
	}
}

// TestResourceQuotaConflict checks that a reservation succeeds after write conflicts.
func TestResourceQuotaConflict(t *testing.T) {
	c, kube := chain(t, Config{}, []string{"ResourceQuota"}, quotaOf(t, "q", "pods=10", "pods=0"))
	conflicts := 2
	client := kube.(*fake.Clientset)
	client.PrependReactor("update", "resourcequotas", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts--; conflicts < 0 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewConflict(corev1.Resource("resourcequotas"), "q", errors.New("the object has been modified"))
	})
	if err := ask(t, c, write{resource: "/pods", ns: "ns", obj: pod(nil)}); err != nil {
		t.Fatal(err)
	}
	q, err := kube.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
	if err != nil || !sameAmounts(q.Status.Used, amounts(t, "pods=1")) {
		t.Errorf("%v %v", q.Status, err)
	}
}

// TestResourceQuotaLocks reserves concurrently in one namespace. No request blocks forever and no
// lock is left behind.
func TestResourceQuotaLocks(t *testing.T) {
	p := &resourceQuota{locks: map[string]*namespaceLock{}}
	var wg sync.WaitGroup
	n := 0
	for range 50 {
		wg.Go(func() {
			done, err := p.lock(t.Context(), "ns")
			if err != nil {
				t.Error(err)
				return
			}
			n++
			done()
		})
	}
	wg.Wait()
	if n != 50 || len(p.locks) != 0 {
		t.Errorf("%d, %v", n, p.locks)
	}
}

// TestResourceQuotaReleased checks that the reservation of a request that fails after admission is
// released, unless another client has recalculated the usage since.
func TestResourceQuotaReleased(t *testing.T) {
	for _, tc := range []struct {
		name   string
		others bool // another client writes the quota between the reservation and the failure
		used   string
	}{
		{"alone", false, "pods=2"},
		{"counted by another", true, "pods=4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, kube := chain(t, Config{}, []string{"ResourceQuota"}, quotaOf(t, "q", "pods=10", "pods=1"))
			version := 1
			kube.(*fake.Clientset).PrependReactor("update", "resourcequotas", func(a clienttesting.Action) (bool, runtime.Object, error) {
				q := a.(clienttesting.UpdateAction).GetObject().(*corev1.ResourceQuota)
				if q.ResourceVersion != strconv.Itoa(version) {
					return true, nil, apierrors.NewConflict(corev1.Resource("resourcequotas"), "q", errors.New("the object has been modified"))
				}
				version++
				q.ResourceVersion = strconv.Itoa(version)
				return false, nil, nil
			})
			ctx, undo := request.Undoable(t.Context())
			attributes := func() admission.Attributes {
				return admission.NewAttributesRecord(pod(nil), nil, corev1.SchemeGroupVersion.WithKind("Pod"), "ns", "p",
					corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, nil, false, &user.DefaultInfo{Name: "ann"})
			}
			if err := c.Validate(ctx, attributes(), nil); err != nil {
				t.Fatal(err)
			}
			if tc.others {
				q := quotaOf(t, "q", "pods=10", "pods=3")
				q.ResourceVersion = "2"
				if _, err := kube.CoreV1().ResourceQuotas("ns").UpdateStatus(t.Context(), q, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			// Another request succeeds.
			if err := c.Validate(t.Context(), attributes(), nil); err != nil {
				t.Fatal(err)
			}
			undo()
			q, err := kube.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
			if err != nil || !sameAmounts(q.Status.Used, amounts(t, tc.used)) {
				t.Errorf("%v %v, want %s", q.Status.Used, err, tc.used)
			}
		})
	}
}
