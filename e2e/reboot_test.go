package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hyperkube/internal/testing/testimage"
)

// booted is a machine that can lose its power: its processes are in a PID namespace. Killing the
// first process kills all others, and removes mounts, links and rules.
type booted struct {
	*alone
	boot  int
	power *exec.Cmd
}

// on boots the machine. Files in its run directory are deleted, like with a tmpfs, and it has a new
// boot ID.
func (b *booted) on() {
	b.t.Helper()
	b.boot++
	if err := os.RemoveAll(filepath.Join(b.dir, "r", "run")); err != nil {
		b.t.Fatal(err)
	}
	id := filepath.Join(b.dir, "boot_id")
	if err := os.WriteFile(id, fmt.Appendf(nil, "%08d-0000-4000-8000-000000000000\n", b.boot), 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.power = exec.Command("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-c", "ip link set lo up && mount --bind "+id+" /proc/sys/kernel/random/boot_id && echo here && while :; do sleep 1; done")
	out, err := b.power.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.power.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.holder, b.pids = b.power.Process.Pid, true
	if _, err := out.Read(make([]byte, 5)); err != nil {
		b.t.Fatal(err)
	}
}

// off kills all processes, and removes the cgroups, which would not exist after a boot.
func (b *booted) off() {
	_ = b.power.Process.Kill()
	_ = b.power.Wait()
	// The other processes exit shortly after the first.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		left := b.cgroups()
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			b.t.Errorf("processes do not exit in %v", left)
			return
		}
		for _, group := range left {
			_ = os.Remove(group) // fails while the cgroup contains processes
		}
	}
}

// cgroups returns the cgroups of the machine, the lowest first.
func (b *booted) cgroups() []string {
	journals, err := filepath.Glob(filepath.Join(b.dir, "r/var/lib/hyperkube/host-changes/*.jsonl"))
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, journal := range journals {
		data, err := os.ReadFile(journal)
		if err != nil {
			b.t.Fatal(err)
		}
		for line := range strings.SplitSeq(string(data), "\n") {
			_, name, ok := strings.Cut(line, `{"kind":"cgroup","name":"`)
			if !ok {
				continue
			}
			name, _, _ = strings.Cut(name, `"`)
			groups, err := filepath.Glob("/sys/fs/cgroup/*" + name) // several with cgroup v1, one with v2
			if err != nil {
				b.t.Fatal(err)
			}
			for _, parent := range append(groups, "/sys/fs/cgroup"+name) {
				_ = filepath.WalkDir(parent, func(path string, d fs.DirEntry, err error) error {
					if err == nil && d.IsDir() {
						out = append([]string{path}, out...)
					}
					return nil
				})
			}
		}
	}
	return out
}

// links returns the number of the machine's links to pods.
func (b *booted) links() int {
	b.t.Helper()
	out, err := b.command("ip", "-o", "link", "show", "type", "veth").Output()
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.Count(string(out), "\n")
}

// kubectl runs kubectl and returns its trimmed output.
func (b *booted) kubectl(args ...string) string {
	b.t.Helper()
	return strings.TrimSpace(b.hyperkube(append([]string{"kubectl"}, args...)...))
}

// TestReboot: a cluster with pods, data and Services loses power and boots again. The same pods
// must run in new containers, with their data and Services, and nothing from before the reboot may
// remain.
func TestReboot(t *testing.T) {
	b := &booted{alone: newAlone(t)}
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	b.ctx = ctx
	root := filepath.Join(b.dir, "r")
	b.on()
	t.Cleanup(func() { b.off() })
	b.hyperkube("up", "--root", root)
	image := filepath.Join(b.dir, "busybox.tar")
	if err := testimage.WriteBusybox(image, busybox); err != nil {
		t.Fatal(err)
	}
	b.hyperkube("image", "import", "--root", root, image)
	b.apply(`
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {type: NodePort, selector: {app: db}, ports: [{port: 80}]}
---
` + database("1Mi", `{
		terminationGracePeriodSeconds: 0,
		containers: [{
			name: c, image: `+busybox+`,
			command: [sh, -c, "echo $HOSTNAME >> /data/starts; sync; touch /data/synced; httpd -f -p 80 -h /data || sleep 3600"],
			readinessProbe: {exec: {command: [test, -e, /data/synced]}, periodSeconds: 1},
			volumeMounts: [{name: data, mountPath: /data}, {name: empty, mountPath: /empty}]}],
		volumes: [{name: empty, emptyDir: {}}]}`))
	b.kubectl("rollout", "status", "statefulset/db", "--timeout=180s")
	const (
		pods  = `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}`
		ids   = `jsonpath={range .items[*]}{.status.containerStatuses[0].containerID}{"\n"}{end}`
		place = "jsonpath={.spec.clusterIP} {.spec.ports[0].nodePort}"
	)
	names, containers, service := b.kubectl("get", "pods", "-o", pods), b.kubectl("get", "pods", "-o", ids), b.kubectl("get", "service", "db", "-o", place)

	b.off()
	b.on()
	b.hyperkube("up", "--root", root)
	b.kubectl("wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "pod", "-l", "app=db", "--timeout=180s")
	b.kubectl("wait", "--for=condition=Ready", "pod", "-l", "app=db", "--timeout=180s")
	if is := b.kubectl("get", "pods", "-o", pods); is != names {
		t.Errorf("pods were\n%s\nand are\n%s", names, is)
	}
	for id := range strings.FieldsSeq(b.kubectl("get", "pods", "-o", ids)) {
		if strings.Contains(containers, id) {
			t.Errorf("container %s has survived the power loss", id)
		}
	}
	if is := b.kubectl("get", "service", "db", "-o", place); is != service {
		t.Errorf("the service was at %s and is at %s", service, is)
	}
	for _, pod := range []string{"db-0", "db-1"} {
		if got := b.kubectl("exec", pod, "--", "cat", "/data/starts"); got != pod+"\n"+pod {
			t.Errorf("the volume of %s has %q", pod, got)
		}
	}
	// The pods' addresses are unique and work.
	addresses := strings.Fields(b.kubectl("get", "pods", "-A", "-o", "jsonpath={.items[*].status.podIP}"))
	seen := map[string]bool{}
	for _, address := range addresses {
		if seen[address] {
			t.Errorf("%s is the address of two pods: %v", address, addresses)
		}
		seen[address] = true
	}
	for _, pod := range []string{"db-0", "db-1"} {
		if out, address := b.kubectl("exec", pod, "--", "cat", "/proc/net/fib_trie"), b.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIP}"); !strings.Contains(out, "|-- "+address+"\n") {
			t.Errorf("the address in the status of %s differs from its address:\n%s, %s", pod, address, out)
		}
	}
	if links := b.links(); links != len(addresses) {
		t.Errorf("%d pods have %d links", len(addresses), links)
	}
	b.hyperkube("reset", "--root", root)
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("after reset, files %v remain, %v", left, err)
	}
	if left := b.cgroups(); len(left) > 0 {
		t.Errorf("after reset, links or cgroups %v remain", left)
	}
}
