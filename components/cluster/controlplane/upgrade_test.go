package controlplane

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
	"hyperkube/internal/base/version"
	"hyperkube/internal/host/layout"
)

// TestOwnVersion: versions other than that of this program are refused.
func TestOwnVersion(t *testing.T) {
	own := version.Get().GitVersion
	bare, _, _ := strings.Cut(own, "+")
	for requested, valid := range map[string]bool{
		own: true, bare: true, strings.TrimPrefix(own, "v"): true,
		"v1.2.3": false, bare + "+other.1": false, "latest": false,
	} {
		if err := checkTargetVersion(requested); (err == nil) != valid {
			t.Errorf("%s with a program of %s: %v", requested, own, err)
		}
	}
}

// TestSkew: a cluster is upgraded one minor version at a time and is never downgraded.
func TestSkew(t *testing.T) {
	for _, c := range []struct {
		from, to, want string
	}{
		{"v1.37.1", "v1.37.2+hyperkube.0", ""},
		{"v1.37.2+hyperkube.0", "v1.37.2+hyperkube.1", ""},
		{"v1.37.2", "v1.37.1", ""},
		{"v1.36.9", "v1.37.0", ""},
		{"v1.35.9", "v1.37.0", "skips a minor version"},
		{"v1.38.0", "v1.37.2", "downgrading"},
		{"?", "v1.37.2", "parsing version of the cluster"},
	} {
		if err := checkSkew(c.from, c.to); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("from %s to %s: %v, want %q", c.from, c.to, err, c.want)
		}
	}
}

// TestPlan: the plan lists each machine with its version, and the commands to run if a machine has
// an older version.
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
		t.Errorf("with an older machine:\n%s", got)
	}
	nodes[1].Status.NodeInfo.KubeletVersion = "v2"
	if got := plan(); strings.Contains(got, "upgrade apply") || !strings.Contains(got, "The cluster is up to date") {
		t.Errorf("after the upgrade:\n%s", got)
	}
}

// TestUpgradeOnWrongMachine: an upgrade command on the wrong kind of machine names the right command.
func TestUpgradeOnWrongMachine(t *testing.T) {
	o := &upgrade{}
	m := newTestNode(t)
	if err := o.node(t.Context(), &bytes.Buffer{}, m.layout); command.ExitCode(err) != command.ExitPreflight || !strings.Contains(err.Error(), "upgrade apply") {
		t.Errorf("node on the first control plane node: %v", err)
	}
	additional := newTestNode(t)
	additional.layout = layout.Under(t.TempDir())
	if _, err := additional.member().setUpAdditional(); err != nil {
		t.Fatal(err)
	}
	if err := o.apply(t.Context(), &bytes.Buffer{}, additional.layout); command.ExitCode(err) != command.ExitPreflight || !strings.Contains(err.Error(), "upgrade node") {
		t.Errorf("apply on an additional control plane node: %v", err)
	}
	none := layout.Under(t.TempDir())
	for name, run := range map[string]func() error{
		"apply": func() error { return o.apply(t.Context(), &bytes.Buffer{}, none) },
		"node":  func() error { return o.node(t.Context(), &bytes.Buffer{}, none) },
	} {
		if err := run(); command.ExitCode(err) != command.ExitPreflight || !strings.Contains(err.Error(), "hyperkube up") {
			t.Errorf("%s without a cluster: %v", name, err)
		}
	}
}

// TestUpgradeDiff: the diff shows manual changes and changes of an older version, with the real
// paths. No file is written.
func TestUpgradeDiff(t *testing.T) {
	m := newTestNode(t)
	diff := func(contextLines int) string {
		t.Helper()
		var out bytes.Buffer
		if err := dryRunWrite(&out, m.layout, func(staged layout.Node) error {
			upgraded := *m
			upgraded.layout = staged
			return upgraded.prepare()
		}, func(r *dryRunner) error { return r.diffManifests(contextLines) }); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := diff(3); got != "" {
		t.Errorf("without changes:\n%s", got)
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
		t.Errorf("%d lines with one line of context:\n%s", n, got)
	}
	if current, err := os.ReadFile(path); err != nil || !bytes.Equal(current, changed) {
		t.Errorf("the manifest was written: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := diff(3); !strings.Contains(got, "\n+    - --leader-elect=true\n") {
		t.Errorf("of a missing manifest:\n%s", got)
	}
	if err := new(upgrade).diff(&bytes.Buffer{}, layout.Under(t.TempDir()), 3); command.ExitCode(err) != command.ExitPreflight {
		t.Errorf("on a machine that is not a control plane node: %v", err)
	}
}

// TestUpgradeChecks: problems that prevent an upgrade are reported together, under the names of
// kubeadm, and can be ignored by name.
func TestUpgradeChecks(t *testing.T) {
	m := newTestNode(t)
	nodes := make([]corev1.Node, 3)
	for i, name := range []string{"own", "b", "c"} {
		nodes[i].Name = name
		nodes[i].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	nodes[0].Status.Conditions = nil // the upgrade may repair this node
	if found := upgradeProblems(m.layout, "own", nodes); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	nodes[2].Status.Conditions[0].Status = corev1.ConditionUnknown
	if err := os.Remove(filepath.Join(m.layout.StaticPods(), "etcd.yaml")); err != nil {
		t.Fatal(err)
	}
	found := upgradeProblems(m.layout, "own", nodes)
	var out bytes.Buffer
	err := preflight.FatalError(found, ignoredChecks{"StaticPodManifest"}, printWarning(&out))
	if err == nil || !strings.Contains(err.Error(), "\t[ERROR ControlPlaneNodesReady]: ") || !strings.Contains(err.Error(), ": c\n") || !strings.Contains(out.String(), "etcd.yaml") {
		t.Errorf("%v; ignored:\n%s", err, &out)
	}
	if err := preflight.FatalError(found, nil, printWarning(&out)); !strings.Contains(err.Error(), "\t[ERROR StaticPodManifest]: ") || command.ExitCode(err) != command.ExitPreflight {
		t.Errorf("none ignored: %v", err)
	}
}

// TestUpgradePatches: the patches directory of an upgrade changes the manifests of an additional
// control plane node, now and in later upgrades.
func TestUpgradePatches(t *testing.T) {
	m := newTestNode(t)
	m.etcdMembers = "m=https://192.0.2.1:2380"
	if err := m.save(); err != nil {
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
		if err := rewriteManifests(m.layout, quiet, c.patches, false); err != nil {
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

// TestWaitForOtherNodes: an upgrade waits for a control plane node that was upgraded just before, and
// reports one that does not become ready.
func TestWaitForOtherNodes(t *testing.T) {
	unready := []preflight.Problem{preflight.NewProblem(nodesReadyCheck, errors.New("other control plane nodes are not ready: m2"))}
	calls := 0
	becomesReady := func(context.Context) ([]preflight.Problem, error) {
		if calls++; calls == 1 {
			return unready, nil
		}
		return nil, nil
	}
	if found, err := waitForNodes(t.Context(), becomesReady); len(found) > 0 || err != nil || calls != 2 {
		t.Errorf("after %d checks: %v, %v", calls, found, err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if found, err := waitForNodes(canceled, func(context.Context) ([]preflight.Problem, error) { return unready, nil }); len(found) != 1 || err != nil {
		t.Errorf("after the timeout: %v, %v", found, err)
	}
	// The timeout may expire during a request.
	duringRequest, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls = 0
	if found, err := waitForNodes(duringRequest, func(ctx context.Context) ([]preflight.Problem, error) {
		if calls++; calls == 1 {
			return unready, nil
		}
		cancel()
		return nil, ctx.Err()
	}); len(found) != 1 || err != nil {
		t.Errorf("timeout during a request: %v, %v", found, err)
	}
}

// TestFindUpgradeProblems: a control plane node lists the other control plane nodes; a worker does not.
func TestFindUpgradeProblems(t *testing.T) {
	kube := fake.NewClientset()
	kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("forbidden")
	})
	if found, err := findUpgradeProblems(t.Context(), kube, layout.Under(t.TempDir()), "own"); len(found) > 0 || err != nil {
		t.Errorf("worker: %v, %v", found, err)
	}
	if _, err := findUpgradeProblems(t.Context(), kube, newTestNode(t).layout, "own"); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("control plane node: %v", err)
	}
}

// TestJoinedDryRun: on a node that has joined, a dry run of join prints the files that it would
// write with the given patches.
func TestJoinedDryRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("join needs root")
	}
	t.Setenv("TMPDIR", t.TempDir())
	root, first := t.TempDir(), newTestNode(t)
	m := &controlPlaneNode{
		layout: layout.Under(root), settings: first.settings, identity: first.identity,
		address: first.address, addresses: first.addresses, etcdMembers: "m=https://192.0.2.1:2380",
	}
	if err := errors.Join(m.prepare(), m.save()); err != nil {
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
