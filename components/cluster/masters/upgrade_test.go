package masters

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"hyperkube/components/cluster/command"
	"hyperkube/components/cluster/preflight"
	"hyperkube/components/cluster/progress"
	"hyperkube/internal/layout"
	"hyperkube/internal/version"
)

// TestOwnVersion: whoever asks for another version than this program's is told so.
func TestOwnVersion(t *testing.T) {
	own := version.Get().GitVersion
	bare, _, _ := strings.Cut(own, "+")
	for wish, good := range map[string]bool{
		own: true, bare: true, strings.TrimPrefix(own, "v"): true,
		"v1.2.3": false, bare + "+other.1": false, "latest": false,
	} {
		if err := ownVersion(wish); (err == nil) != good {
			t.Errorf("%s with a program of %s: %v", wish, own, err)
		}
	}
}

// TestSkew: a cluster goes one minor version on at a time, and never back.
func TestSkew(t *testing.T) {
	for _, c := range []struct {
		from, to, want string
	}{
		{"v1.37.1", "v1.37.2+hyperkube.0", ""},
		{"v1.37.2+hyperkube.0", "v1.37.2+hyperkube.1", ""},
		{"v1.37.2", "v1.37.1", ""},
		{"v1.36.9", "v1.37.0", ""},
		{"v1.35.9", "v1.37.0", "more than one minor"},
		{"v1.38.0", "v1.37.2", "goes back"},
		{"?", "v1.37.2", "the cluster's version"},
	} {
		if err := skew(c.from, c.to); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("from %s to %s: %v, want %q", c.from, c.to, err, c.want)
		}
	}
}

// TestPlan: the plan names each machine with its version, and what is to be typed while
// any is behind.
func TestPlan(t *testing.T) {
	nodes := make([]corev1.Node, 2)
	nodes[0].Name, nodes[1].Name = "m", "w"
	nodes[0].Status.NodeInfo.KubeletVersion, nodes[1].Status.NodeInfo.KubeletVersion = "v2", "v1"
	plan := func() string {
		t.Helper()
		var out bytes.Buffer
		if err := printPlan(&out, "v2", "v2", nodes); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := plan(); !strings.Contains(got, "kubelet         w      v1        v2\n") || !strings.Contains(got, "hyperkube upgrade apply v2\n") {
		t.Errorf("while a machine is behind:\n%s", got)
	}
	nodes[1].Status.NodeInfo.KubeletVersion = "v2"
	if got := plan(); strings.Contains(got, "upgrade apply") || !strings.Contains(got, "Everything is of this version") {
		t.Errorf("at the end:\n%s", got)
	}
}

// TestUpgradeWhere: each machine is told which command is for it.
func TestUpgradeWhere(t *testing.T) {
	o := &upgrade{}
	m := testMaster(t)
	if err := o.node(t.Context(), &bytes.Buffer{}, m.layout); command.ExitCode(err) != command.ExitPreflight || !strings.Contains(err.Error(), "upgrade apply") {
		t.Errorf("node on the first master: %v", err)
	}
	further := testMaster(t)
	further.layout = layout.Under(t.TempDir())
	if _, err := further.startKeys(); err != nil {
		t.Fatal(err)
	}
	if err := o.apply(t.Context(), &bytes.Buffer{}, further.layout); command.ExitCode(err) != command.ExitPreflight || !strings.Contains(err.Error(), "upgrade node") {
		t.Errorf("apply on a further master: %v", err)
	}
	none := layout.Under(t.TempDir())
	for name, run := range map[string]func() error{
		"apply": func() error { return o.apply(t.Context(), &bytes.Buffer{}, none) },
		"node":  func() error { return o.node(t.Context(), &bytes.Buffer{}, none) },
	} {
		if err := run(); command.ExitCode(err) != command.ExitPreflight || !strings.Contains(err.Error(), "hyperkube up") {
			t.Errorf("%s where no cluster is: %v", name, err)
		}
	}
}

// TestUpgradeDiff: what is printed is what somebody or an older version has in a manifest and
// an upgrade has not, by the real paths; nothing is written.
func TestUpgradeDiff(t *testing.T) {
	m := testMaster(t)
	diff := func(around int) string {
		t.Helper()
		var out bytes.Buffer
		if err := rehearseWrite(&out, m.layout, func(played layout.Node) error {
			again := *m
			again.layout = played
			return again.prepare()
		}, func(r *rehearsal) error { return r.diffManifests(around) }); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := diff(3); got != "" {
		t.Errorf("of what is as it would be:\n%s", got)
	}
	path := filepath.Join(m.layout.StaticPods(), "kube-scheduler.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(data, []byte("--leader-elect=true"), []byte("--leader-elect=false"), 1)
	if err := os.WriteFile(path, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	got := diff(1)
	for _, want := range []string{"--- " + path + "\n", "+++ new manifest\n", "\n-    - --leader-elect=false\n+    - --leader-elect=true\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	if n := strings.Count(got, "\n"); n != 7 {
		t.Errorf("%d lines with one around the change:\n%s", n, got)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, changed) {
		t.Errorf("the manifest was written: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := diff(3); !strings.Contains(got, "\n+    - --leader-elect=true\n") {
		t.Errorf("of a manifest that is not there:\n%s", got)
	}
	if err := new(upgrade).diff(&bytes.Buffer{}, layout.Under(t.TempDir()), 3); command.ExitCode(err) != command.ExitPreflight {
		t.Errorf("where no master is: %v", err)
	}
}

// TestUpgradeChecks: what stands in the way of an upgrade is told under kubeadm's names, all
// of it at once, and ignored by them.
func TestUpgradeChecks(t *testing.T) {
	m := testMaster(t)
	masters := make([]corev1.Node, 3)
	for i, name := range []string{"own", "b", "c"} {
		masters[i].Name = name
		masters[i].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	masters[0].Status.Conditions = nil // this one may be what the upgrade is to mend
	if found := upgradeProblems(m.layout, "own", masters); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	masters[2].Status.Conditions[0].Status = corev1.ConditionUnknown
	if err := os.Remove(filepath.Join(m.layout.StaticPods(), "etcd.yaml")); err != nil {
		t.Fatal(err)
	}
	found := upgradeProblems(m.layout, "own", masters)
	var out bytes.Buffer
	err := preflight.Fatal(found, ignored{"StaticPodManifest"}, warning(&out))
	if err == nil || !strings.Contains(err.Error(), "\t[ERROR ControlPlaneNodesReady]: ") || !strings.Contains(err.Error(), ": c\n") || !strings.Contains(out.String(), "etcd.yaml") {
		t.Errorf("%v; ignored:\n%s", err, &out)
	}
	if err := preflight.Fatal(found, nil, warning(&out)); !strings.Contains(err.Error(), "\t[ERROR StaticPodManifest]: ") || command.ExitCode(err) != command.ExitPreflight {
		t.Errorf("none ignored: %v", err)
	}
}

// TestUpgradePatches: a folder of patches that an upgrade is given changes the manifests of a
// further master then and later.
func TestUpgradePatches(t *testing.T) {
	m := testMaster(t)
	m.etcdMembers = "m=https://192.0.2.1:2380"
	if err := m.keep(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "etcd+merge.yaml"), []byte("metadata: {annotations: {a: patched}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	quiet := progress.New(func(progress.Step) {})
	for _, c := range []struct {
		patches string
		want    bool
	}{{"", false}, {dir, true}, {"", true}} {
		if err := renewManifests(m.layout, quiet, c.patches, false); err != nil {
			t.Fatal(err)
		}
		manifest, err := os.ReadFile(filepath.Join(m.layout.StaticPods(), "etcd.yaml"))
		if err != nil || strings.Contains(string(manifest), "a: patched") != c.want {
			t.Errorf("patches %q: %v\n%s", c.patches, err, manifest)
		}
	}
	for _, verb := range []string{"apply", "node"} {
		if cmd, _, err := NewUpgrade().Find([]string{verb}); err != nil || cmd.Flags().Lookup("patches") == nil {
			t.Errorf("upgrade %s has no --patches: %v", verb, err)
		}
	}
}

// TestOthersSettle: an upgrade waits for a master that was upgraded just before, and tells of
// one that does not come back.
func TestOthersSettle(t *testing.T) {
	unready := []preflight.Problem{preflight.Found(othersReady, errors.New("other masters are not ready: m2"))}
	looked := 0
	back := func(context.Context) ([]preflight.Problem, error) {
		if looked++; looked == 1 {
			return unready, nil
		}
		return nil, nil
	}
	if found, err := settled(t.Context(), back); len(found) > 0 || err != nil || looked != 2 {
		t.Errorf("after %d looks: %v, %v", looked, found, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if found, err := settled(ended, func(context.Context) ([]preflight.Problem, error) { return unready, nil }); len(found) != 1 || err != nil {
		t.Errorf("in the end: %v, %v", found, err)
	}
	// The end may come while the cluster is asked.
	late, cancel := context.WithCancel(t.Context())
	defer cancel()
	looked = 0
	if found, err := settled(late, func(ctx context.Context) ([]preflight.Problem, error) {
		if looked++; looked == 1 {
			return unready, nil
		}
		cancel()
		return nil, ctx.Err()
	}); len(found) != 1 || err != nil {
		t.Errorf("in the end, with no answer: %v, %v", found, err)
	}
}

// TestLookAround: a master asks for the others, a worker for nobody.
func TestLookAround(t *testing.T) {
	kube := fake.NewClientset()
	kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("forbidden")
	})
	if found, err := lookAround(t.Context(), kube, layout.Under(t.TempDir()), "own"); len(found) > 0 || err != nil {
		t.Errorf("a worker: %v, %v", found, err)
	}
	if _, err := lookAround(t.Context(), kube, testMaster(t).layout, "own"); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("a master: %v", err)
	}
}

// TestJoinedDryRun: a machine that has joined tells what join would write of it with the
// patches that join is given.
func TestJoinedDryRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("join needs root")
	}
	t.Setenv("TMPDIR", t.TempDir())
	root, made := t.TempDir(), testMaster(t)
	m := &master{
		layout: layout.Under(root), settings: made.settings, identity: made.identity,
		address: made.address, addresses: made.addresses, etcdMembers: "m=https://192.0.2.1:2380",
	}
	if err := errors.Join(m.prepare(), m.keep()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "etcd+merge.yaml"), []byte("metadata: {annotations: {a: patched}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for patches, want := range map[string]bool{"": false, dir: true} {
		var out bytes.Buffer
		if err := (&joinOptions{root: root, dryRun: true, patches: patches}).run(t.Context(), &out); err != nil || strings.Contains(out.String(), "a: patched") != want {
			t.Errorf("patches %q: %v\n%s", patches, err, &out)
		}
	}
}
