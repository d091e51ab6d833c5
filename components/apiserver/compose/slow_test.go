package compose_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"

	"hyperkube/components/etcd"
	"hyperkube/internal/testing/testdisk"
	"hyperkube/internal/testing/testwait"
)

// TestSlowDisk checks that writes to a slow disk are slow but succeed. If the disk stalls, writes
// fail with an error that names the cause, and cached reads succeed. When the disk recovers, all
// requests succeed immediately, and acknowledged writes are present.
func TestSlowDisk(t *testing.T) {
	disk := testdisk.NewDevice(t, 512<<20)
	e := startWith(t, etcd.Config{DataDir: filepath.Join(disk.Path(), "etcd")}, nil)
	kube := kubernetes.NewForConfigOrDie(as(t, e.conf, ""))
	maps := kube.CoreV1().ConfigMaps("default")
	acknowledged := map[string]bool{}
	named := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	create := func(name string) error {
		_, err := maps.Create(t.Context(), named(name), metav1.CreateOptions{})
		if err == nil {
			acknowledged[name] = true
		}
		return err
	}
	if err := create("before"); err != nil {
		t.Fatal(err)
	}

	for i := range 5 {
		release := disk.Freeze()
		timer := time.AfterFunc(300*time.Millisecond, release)
		if err := create(fmt.Sprint("slow", i)); err != nil {
			t.Error(err)
		}
		if timer.Stop() {
			t.Error("a write was acknowledged before it was on disk")
		}
		release()
	}

	release := disk.Freeze()
	defer release()
	watch, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0", FieldSelector: "metadata.name=before"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if event := <-watch.ResultChan(); event.Type != "ADDED" {
		t.Errorf("watch event %+v", event)
	}
	rest := kube.CoreV1().RESTClient()
	ended := func(what string, request *clientrest.Request) error {
		began := time.Now()
		err := request.Namespace("default").Resource("configmaps").Do(t.Context()).Error()
		t.Logf("%s ended after %s: %v", what, time.Since(began).Round(time.Millisecond), err)
		return err
	}
	if err := ended("a hurried write", rest.Post().Param("timeout", "2s").Body(named("hurried"))); !apierrors.IsTimeout(err) {
		t.Errorf("write with a timeout of 2s: %v", err)
	}
	if err := ended("a patient write", rest.Post().Body(named("patient"))); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "etcdserver: request timed out") {
		t.Errorf("write: %v", err)
	}
	// Reads of any version are served from the cache. Consistent reads need etcd.
	if err := ended("a read of any version", rest.Get().Name("before").Param("resourceVersion", "0")); err != nil {
		t.Error(err)
	}
	if err := ended("a list of any version", rest.Get().Param("resourceVersion", "0")); err != nil {
		t.Error(err)
	}
	if err := ended("a hurried read", rest.Get().Name("before").Param("timeout", "2s")); !apierrors.IsTimeout(err) {
		t.Error(err)
	}
	patient := make(chan error, 2)
	go func() { patient <- ended("a patient read", rest.Get().Name("before")) }()
	go func() { patient <- ended("a patient list", rest.Get()) }()
	ready := func() (string, error) {
		text, err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		return string(text), err
	}
	if text, err := ready(); err == nil || !strings.Contains(text, "etcd") {
		t.Errorf("/readyz says %q, %v", text, err)
	}
	if len(patient) > 0 {
		t.Error("a consistent read succeeded without etcd")
	}
	release()

	if err := create("after"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(<-patient, <-patient); err != nil {
		t.Error(err)
	}
	testwait.Until(t, "the server to be ready", func() bool {
		_, err := ready()
		return err == nil
	})
	for name := range acknowledged {
		if _, err := maps.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("what was acknowledged: %v", err)
		}
	}
	// Writes that were not acknowledged may or may not be present, but can be retried.
	for _, name := range []string{"hurried", "patient"} {
		if err := create(name); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Error(err)
		}
	}
}
