package compose_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"

	"hyperkube/components/etcd"
	"hyperkube/internal/testing/testwait"
)

// slowDisk is a separate file system on which writes can be suspended, to simulate an overloaded
// disk.
type slowDisk struct {
	testing.TB
	path string
}

func newSlowDisk(t testing.TB) *slowDisk {
	t.Helper()
	dir := t.TempDir()
	image, d := filepath.Join(dir, "image"), &slowDisk{TB: t, path: filepath.Join(dir, "disk")}
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 512<<20), os.Mkdir(d.path, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, d.path}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("requires a dedicated file system: %v: %s", err, out)
		}
	}
	t.Cleanup(d.shell("true", "0", `umount -l "$0"`))
	return d
}

// hold suspends writes until the returned function is called.
func (d *slowDisk) hold() (release func()) {
	d.Helper()
	// A process that writes to a frozen file system cannot be killed, so it is frozen for a minute
	// at most.
	return d.shell(`fsfreeze -f "$0"`, "60", `fsfreeze -u "$0"`)
}

// shell runs the command first, and later the command last: when the returned function is called,
// after the given number of seconds unless it is 0, or when this process exits.
func (d *slowDisk) shell(first, seconds, last string) (end func()) {
	d.Helper()
	cmd := exec.Command("sh", "-c", first+" && echo && timeout "+seconds+" cat; "+last, d.path)
	in, err := cmd.StdinPipe()
	if err != nil {
		d.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		d.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		d.Errorf("%s: %v", first, err)
	}
	return sync.OnceFunc(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			d.Error(err)
		}
	})
}

// TestSlowDisk checks that writes to a slow disk are slow but succeed. If the disk stalls, writes
// fail with an error that names the cause, and cached reads succeed. When the disk recovers, all
// requests succeed immediately, and acknowledged writes are present.
func TestSlowDisk(t *testing.T) {
	disk := newSlowDisk(t)
	e := startWith(t, etcd.Config{DataDir: filepath.Join(disk.path, "etcd")}, nil)
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
		release := disk.hold()
		timer := time.AfterFunc(300*time.Millisecond, release)
		if err := create(fmt.Sprint("slow", i)); err != nil {
			t.Error(err)
		}
		if timer.Stop() {
			t.Error("a write was acknowledged before it was on disk")
		}
		release()
	}

	release := disk.hold()
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
