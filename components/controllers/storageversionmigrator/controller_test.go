package storageversionmigrator

import (
	"errors"
	"strings"
	"testing"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/components/controllers/internal/controltest"
)

// served is a discovery client with widgets, and with readings, which do not support patch.
type served struct{ discovery.DiscoveryInterface }

func (served) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	return []*metav1.APIResourceList{{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
		{Name: "widgets", Kind: "Widget", Namespaced: true, Verbs: []string{"get", "list", "update", "patch"}},
		{Name: "readings", Kind: "Reading", Verbs: []string{"get", "list"}},
	}}}, nil
}

func migration(name, resource string, age time.Duration, set ...storagemigrationv1.MigrationConditionType) *storagemigrationv1.StorageVersionMigration {
	m := &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(controltest.Now.Add(-age))},
		Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: "example.com", Resource: resource}},
	}
	for _, t := range set {
		meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: string(t), Status: metav1.ConditionTrue, Reason: "Test"})
	}
	return m
}

func widget(name, version string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Widget"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: version},
	}
}

func TestSync(t *testing.T) {
	const running, succeeded, failed = storagemigrationv1.MigrationRunning, storagemigrationv1.MigrationSucceeded, storagemigrationv1.MigrationFailed
	from := func(m *storagemigrationv1.StorageVersionMigration, revision string) *storagemigrationv1.StorageVersionMigration {
		m.Status.ResourceVersion = revision
		return m
	}
	for _, c := range []struct {
		name     string
		key      string
		all      []*storagemigrationv1.StorageVersionMigration
		refused  error  // the error of a patch of a widget
		of       string // the migration that changes, "" for none
		want     map[storagemigrationv1.MigrationConditionType]string
		revision string
		patched  string
		fails    bool
	}{
		{name: "the oldest starts", all: []*storagemigrationv1.StorageVersionMigration{migration("young", "widgets", 0), migration("old", "widgets", time.Hour)},
			of: "old", want: map[storagemigrationv1.MigrationConditionType]string{running: "The migration is running"}},
		{name: "one at a time", all: []*storagemigrationv1.StorageVersionMigration{migration("next", "widgets", time.Hour), from(migration("now", "widgets", 0, running), "")},
			of: "now", revision: "50"},
		{name: "older objects are rewritten", all: []*storagemigrationv1.StorageVersionMigration{from(migration("m", "widgets", 0, running), "20")},
			of: "m", patched: "a", revision: "20", want: map[storagemigrationv1.MigrationConditionType]string{running: "The migration is running, 2 objects verified migrated", succeeded: "Migration completed"}},
		{name: "a busy server", refused: errBusy, fails: true, all: []*storagemigrationv1.StorageVersionMigration{from(migration("m", "widgets", 0, running), "20")},
			of: "m", patched: "a", revision: "20", want: map[storagemigrationv1.MigrationConditionType]string{running: "The migration is running, 2/2 objects not yet migrated; transient error: " + errBusy.Error()}},
		{name: "a refused patch", refused: errors.New("no"), all: []*storagemigrationv1.StorageVersionMigration{from(migration("m", "widgets", 0, running), "20")},
			of: "m", patched: "a", revision: "20", want: map[storagemigrationv1.MigrationConditionType]string{failed: "2/2 not yet migrated. migration encountered unhandled error: no"}},
		{name: "resource not served yet", key: "things.example.com", all: []*storagemigrationv1.StorageVersionMigration{migration("m", "things", 59*time.Second, running)}},
		{name: "resource never served", key: "things.example.com", all: []*storagemigrationv1.StorageVersionMigration{migration("m", "things", time.Minute, running)},
			of: "m", want: map[storagemigrationv1.MigrationConditionType]string{failed: "resource does not exist in discovery"}},
		{name: "no patch verb", key: "readings.example.com", all: []*storagemigrationv1.StorageVersionMigration{migration("m", "readings", 0, running)},
			of: "m", want: map[storagemigrationv1.MigrationConditionType]string{failed: `resource "example.com/v1, Resource=readings" does not support discovery operations: [update patch list]`}},
		{name: "succeeded, still running", all: []*storagemigrationv1.StorageVersionMigration{migration("m", "widgets", 0, running, succeeded)},
			of: "m", want: map[storagemigrationv1.MigrationConditionType]string{running: "Migration completed"}},
		{name: "nothing left", all: []*storagemigrationv1.StorageVersionMigration{migration("m", "widgets", 0, failed)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := controltest.New(t)
			scheme := runtime.NewScheme()
			metav1.AddMetaToScheme(scheme)
			objects := metadatafake.NewSimpleMetadataClient(scheme, widget("a", "10"), widget("b", "30"))
			var patched []string
			objects.PrependReactor("list", "widgets", func(a clienttesting.Action) (bool, runtime.Object, error) {
				list := &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: "50"}}
				if a.GetNamespace() == "" {
					list.Items = []runtime.RawExtension{{Object: widget("a", "10")}, {Object: widget("b", "30")}}
				}
				return true, list, nil
			})
			objects.PrependReactor("patch", "widgets", func(a clienttesting.Action) (bool, runtime.Object, error) {
				patched = append(patched, a.(clienttesting.PatchAction).GetName())
				return true, widget("a", "60"), c.refused
			})
			controller, err := New(f.Env, Config{Discovery: served{}, Metadata: objects, Definitions: extensionsfake.NewClientset().ApiextensionsV1()})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range c.all {
				f.Add(m)
			}
			key := c.key
			if key == "" {
				key = "widgets.example.com"
			}
			if err := controltest.Sync(t, controller.Loop, key); (err != nil) != c.fails {
				t.Fatalf("error %v, want one: %v", err, c.fails)
			}
			if got := strings.Join(patched, " "); got != c.patched {
				t.Errorf("patched %q, want %q", got, c.patched)
			}
			if c.of == "" {
				if got := f.Writes(); len(got) > 0 {
					t.Errorf("wrote %v", got)
				}
				return
			}
			m, err := f.Env.Kube.StoragemigrationV1().StorageVersionMigrations().Get(t.Context(), c.of, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for kind, message := range c.want {
				if got := meta.FindStatusCondition(m.Status.Conditions, string(kind)); got == nil || got.Message != message {
					t.Errorf("%s is %+v, want the message %q", kind, got, message)
				}
			}
			if m.Status.ResourceVersion != c.revision {
				t.Errorf("resource version %q, want %q", m.Status.ResourceVersion, c.revision)
			}
		})
	}
}

// TestDefinition checks the status of a custom resource's definition during a migration.
func TestDefinition(t *testing.T) {
	for _, c := range []struct {
		name    string
		changed bool // whether the definition changed during the migration
		outcome storagemigrationv1.MigrationConditionType
		stored  string
		reason  string
	}{
		{"succeeded", false, storagemigrationv1.MigrationSucceeded, "v2", "MigrationSucceeded"},
		{"definition changed", true, storagemigrationv1.MigrationSucceeded, "v1 v2", "MigrationSucceeded"},
		{"failed", false, storagemigrationv1.MigrationFailed, "v1 v2", "MigrationFailed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := controltest.New(t)
			definitions := extensionsfake.NewClientset(&apiextensionsv1.CustomResourceDefinition{
				ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", Generation: 3},
				Spec: apiextensionsv1.CustomResourceDefinitionSpec{Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
					{Name: "v1", Served: true}, {Name: "v2", Served: true, Storage: true}}},
				Status: apiextensionsv1.CustomResourceDefinitionStatus{StoredVersions: []string{"v1", "v2"}},
			}).ApiextensionsV1()
			scheme := runtime.NewScheme()
			metav1.AddMetaToScheme(scheme)
			controller, err := New(f.Env, Config{Discovery: served{}, Metadata: metadatafake.NewSimpleMetadataClient(scheme), Definitions: definitions})
			if err != nil {
				t.Fatal(err)
			}
			m := migration("m", "widgets", 0)
			f.Add(m)
			if err := controller.begin(t.Context(), m.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			get := func() *apiextensionsv1.CustomResourceDefinition {
				crd, err := definitions.CustomResourceDefinitions().Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return crd
			}
			crd := get()
			if len(crd.Status.Conditions) != 1 || crd.Status.Conditions[0].Message != "Migration m is running" || crd.Status.Conditions[0].ObservedGeneration != 3 {
				t.Fatalf("after the start: %+v", crd.Status.Conditions)
			}
			if c.changed {
				crd.Generation = 4
				if _, err := definitions.CustomResourceDefinitions().Update(t.Context(), crd, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if err := controller.finish(t.Context(), migration("m", "widgets", 0, storagemigrationv1.MigrationRunning, c.outcome)); err != nil {
				t.Fatal(err)
			}
			crd = get()
			if got := strings.Join(crd.Status.StoredVersions, " "); got != c.stored {
				t.Errorf("stored versions %q, want %q", got, c.stored)
			}
			if got := crd.Status.Conditions[0]; got.Status != apiextensionsv1.ConditionFalse || got.Reason != c.reason {
				t.Errorf("condition %+v, want reason %s", got, c.reason)
			}
		})
	}
}

var errBusy = apierrors.NewTooManyRequests("busy", 1)
