package e2e

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestApplyConflict(t *testing.T) {
	s := newSpace(t)
	manifest := func(value string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {key: " + value + "}\n"
	}
	if _, err := s.run(manifest("one"), "apply", "--server-side", "--field-manager=alice", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	out, err := s.run(manifest("two"), "apply", "--server-side", "--field-manager=bob", "-f", "-")
	if err == nil {
		t.Fatal("no conflict")
	}
	s.contains(out, `conflict with "alice"`, ".data.key")
	if _, err := s.run(manifest("two"), "apply", "--server-side", "--field-manager=bob", "--force-conflicts", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if got := s.do("get", "configmap", "c", "-o", "jsonpath={.data.key}"); got != "two" {
		t.Errorf("key is %s", got)
	}
}

// TestRace updates an object concurrently from two clients that have the same state.
func TestRace(t *testing.T) {
	s := newSpace(t)
	maps := s.kube.CoreV1().ConfigMaps(s.name)
	c, err := maps.Create(s.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first, second := c.DeepCopy(), c.DeepCopy()
	first.Data, second.Data = map[string]string{"a": "1"}, map[string]string{"b": "2"}
	if _, err := maps.Update(s.ctx, first, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = maps.Update(s.ctx, second, metav1.UpdateOptions{})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "the object has been modified; please apply your changes to the latest version and try again") {
		t.Errorf("second update: %v", err)
	}
}

func TestWatch(t *testing.T) {
	s := newSpace(t)
	watch := exec.CommandContext(s.ctx, s.kubectl, "-n", s.name, "get", "configmaps", "-w", "--output-watch-events", "--no-headers")
	stdout, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Process.Kill(); _ = watch.Wait() }()
	lines := make(chan string, 100)
	go func() {
		scan := bufio.NewScanner(stdout)
		for scan.Scan() {
			lines <- scan.Text()
		}
		close(lines)
	}()
	expect := func(parts ...string) {
		t.Helper()
		timeout := time.After(minTimeout)
		for {
			select {
			case line, ok := <-lines:
				if !ok {
					t.Fatal("the watch ended")
				}
				if strings.Contains(line, "kube-root-ca.crt") {
					continue
				}
				s.contains(line, parts...)
				return
			case <-timeout:
				t.Fatalf("no event of %v was received", parts)
			}
		}
	}
	// It results in an ADDED event, whether it is in the list or in the watch.
	s.do("create", "configmap", "c")
	expect("ADDED", "c")
	s.do("patch", "configmap", "c", "-p", `{"data":{"a":"b"}}`)
	expect("MODIFIED", "c", "1")
	s.do("delete", "configmap", "c")
	expect("DELETED", "c")
}
