package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/testing/testwait"
)

// space is the namespace of one test.
type space struct {
	*testing.T
	*cluster
	name string
	ctx  context.Context
}

// minTimeout is the minimum timeout for anything that should happen immediately, because the machine
// may be busy.
var minTimeout = max(2*time.Minute, testwait.Scale(10*time.Second))

// newSpace creates a namespace that is deleted at the end of the test.
func newSpace(t *testing.T) *space {
	t.Helper()
	if shared == nil {
		t.Skip("no cluster")
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(15*time.Minute, testwait.Scale(2*time.Minute)))
	t.Cleanup(cancel)
	ns, err := shared.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := shared.kube.CoreV1().Namespaces().Delete(context.Background(), ns.Name, metav1.DeleteOptions{})
		if err != nil && !strings.Contains(err.Error(), "not found") {
			t.Error(err)
		}
	})
	return &space{T: t, cluster: shared, name: ns.Name, ctx: ctx}
}

// run runs kubectl in the namespace and returns its output.
func (s *space) run(input string, args ...string) (string, error) {
	cmd := exec.CommandContext(s.ctx, s.kubectl, append([]string{"-n", s.name}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String(), err
}

// do runs kubectl, which must succeed.
func (s *space) do(args ...string) string {
	s.Helper()
	out, err := s.run("", args...)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// apply applies a manifest.
func (s *space) apply(manifest string) {
	s.Helper()
	if _, err := s.run(manifest, "apply", "-f", "-"); err != nil {
		s.Fatal(err)
	}
}

// exec runs a shell command in a pod and returns its output.
func (s *space) exec(pod, command string) string {
	s.Helper()
	return s.do("exec", "-q", pod, "--", "/bin/busybox", "sh", "-c", command)
}

// eventually calls f until it returns nil. within is the expected maximum on an idle machine; the
// timeout is at least patience.
func (s *space) eventually(within time.Duration, f func() error) {
	s.Helper()
	within = max(testwait.Scale(within), minTimeout)
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("not within %s: %v", within, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// contains fails unless text contains all parts.
func (s *space) contains(text string, parts ...string) {
	s.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			s.Errorf("no %q in:\n%s", part, text)
		}
	}
}
