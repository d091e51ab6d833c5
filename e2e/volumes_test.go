package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestVolumes: provisioned claims, static volumes and ephemeral volumes.
func TestVolumes(t *testing.T) {
	newSpace(t).needBusybox()
	t.Run("StatefulSet", func(t *testing.T) { t.Parallel(); newSpace(t).statefulVolumes() })
	t.Run("static", func(t *testing.T) { t.Parallel(); newSpace(t).staticVolume() })
	t.Run("ephemeral", func(t *testing.T) { t.Parallel(); newSpace(t).ephemeralVolume() })
	t.Run("one pod only", func(t *testing.T) { t.Parallel(); newSpace(t).soleVolume() })
}

// gone waits until no object of a kind has the name or label.
func (s *space) gone(what ...string) {
	s.Helper()
	s.eventually(20*time.Second, func() error {
		out, err := s.run("", append([]string{"get", "--ignore-not-found", "-o", "name"}, what...)...)
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("still exists: %s", out)
		}
		return err
	})
}

// directory returns the name and the path of a claim's local volume.
func (s *space) directory(claim string) (volume, path string) {
	s.Helper()
	volume = s.do("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
	return volume, s.do("get", "pv", volume, "-o", "jsonpath={.spec.local.path}")
}

// database returns the manifest of a StatefulSet db with two pods, parallel pod management, and a
// volume data of the given size for each. pod is their spec in braces.
func database(size, pod string) string {
	return `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: ` + strings.ReplaceAll(pod, "\t", " ") + `
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: ` + size + `}}}
`
}

func (s *space) statefulVolumes() {
	s.apply(database("64Mi", `{
		terminationGracePeriodSeconds: 0, securityContext: {runAsUser: 1000, fsGroup: 2000},
		containers: [{name: c, image: `+busybox+`, command: [sleep, "3600"], volumeMounts: [{name: data, mountPath: /data}]}]}`))
	s.do("rollout", "status", "statefulset/db", "--timeout=180s")
	for _, pod := range []string{"db-0", "db-1"} {
		s.exec(pod, "echo of "+pod+" > /data/file")
	}
	uid := s.do("get", "pod", "db-1", "-o", "jsonpath={.metadata.uid}")
	s.do("delete", "pod", "db-1")
	s.eventually(20*time.Second, func() error {
		out, err := s.run("", "get", "pod", "db-1", "-o", "jsonpath={.metadata.uid} {.status.phase}")
		if err == nil && (strings.Contains(out, uid) || !strings.HasSuffix(out, "Running")) {
			err = errors.New(out)
		}
		return err
	})
	if got := s.exec("db-1", "cat /data/file; stat -c %g /data"); got != "of db-1\n2000\n" {
		s.Errorf("after the pod was recreated: %q", got)
	}
	s.do("patch", "pvc", "data-db-1", "-p", `{"spec":{"resources":{"requests":{"storage":"128Mi"}}}}`)
	s.do("wait", "pvc/data-db-1", "--for=jsonpath={.status.capacity.storage}=128Mi", "--timeout=180s")

	// A claim in use is kept, and its directory until the volume is deleted.
	volume, path := s.directory("data-db-0")
	if data, err := os.ReadFile(filepath.Join(path, "file")); err != nil || string(data) != "of db-0\n" {
		s.Errorf("on the host: %q, %v", data, err)
	}
	s.do("delete", "pvc", "data-db-0", "--wait=false")
	s.contains(s.do("get", "pvc", "data-db-0"), "Terminating")
	s.exec("db-0", "echo still > /data/file")
	s.do("delete", "statefulset", "db")
	s.gone("pvc", "data-db-0")
	s.gone("pv", volume)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		s.Errorf("the directory of a deleted volume: %v", err)
	}
	volume, path = s.directory("data-db-1")
	if _, err := os.Stat(path); err != nil {
		s.Errorf("the directory of a volume with an existing claim: %v", err)
	}
	s.do("delete", "pvc", "data-db-1")
	s.gone("pv", volume)
}

func (s *space) staticVolume() {
	dir := s.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("static\n"), 0o644); err != nil {
		s.Fatal(err)
	}
	volume := func(name, size string) string {
		return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %s-%s, labels: {of: %[1]s, size: %[2]s}}
spec:
  capacity: {storage: %[3]s}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  hostPath: {path: %[4]s}
---
`, s.name, name, size, dir)
	}
	s.apply(volume("small", "1Mi") + volume("large", "1Gi"))
	s.Cleanup(func() { s.do("delete", "pv", "-l", "of="+s.name, "--wait=false") })
	s.apply(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  selector: {matchLabels: {of: ` + s.name + `, size: large}}
  resources: {requests: {storage: 1Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: v, persistentVolumeClaim: {claimName: c, readOnly: true}}]
  containers:
  - {name: c, image: ` + busybox + `, command: [sleep, "3600"], volumeMounts: [{name: v, mountPath: /v}]}
`)
	s.do("wait", "--for=condition=Ready", "pod/p", "--timeout=180s")
	if got := s.do("get", "pvc", "c", "-o", "jsonpath={.spec.volumeName} {.status.capacity.storage}"); got != s.name+"-large 1Gi" {
		s.Errorf("bound to %s", got)
	}
	if got := s.exec("p", "cat /v/file; touch /v/other 2>&1 || true"); !strings.HasPrefix(got, "static\n") || !strings.Contains(got, "Read-only") {
		s.Errorf("in the pod: %q", got)
	}
	s.do("delete", "pod", "p")
	s.do("delete", "pvc", "c")
	s.do("wait", "pv/"+s.name+"-large", "--for=jsonpath={.status.phase}=Released", "--timeout=180s")
	if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
		s.Errorf("retained data: %v", err)
	}
}

func (s *space) ephemeralVolume() {
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - name: scratch
    ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}}
  containers:
  - {name: c, image: ` + busybox + `, command: [sleep, "3600"], volumeMounts: [{name: scratch, mountPath: /s, subPath: a/b}]}
`)
	s.do("wait", "--for=condition=Ready", "pod/p", "--timeout=180s")
	s.exec("p", "echo x > /s/file")
	volume, path := s.directory("p-scratch")
	if _, err := os.Stat(filepath.Join(path, "a/b/file")); err != nil {
		s.Error(err)
	}
	s.do("delete", "pod", "p")
	s.gone("pvc", "p-scratch")
	s.gone("pv", volume)
}

// soleVolume: only one of two pods with a ReadWriteOncePod claim runs.
func (s *space) soleVolume() {
	pod := func(name string) string {
		return `
---
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]
  containers:
  - {name: c, image: ` + busybox + `, command: [sleep, "3600"], volumeMounts: [{name: v, mountPath: /v}]}
`
	}
	s.apply(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c}
spec: {accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Mi}}}
` + pod("first"))
	s.do("wait", "--for=condition=Ready", "pod/first", "--timeout=180s")
	s.apply(pod("second"))
	s.eventually(20*time.Second, func() error {
		out := s.do("get", "pod", "second", "-o", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}")
		if !strings.Contains(out, "ReadWriteOncePod access mode") {
			return errors.New(out)
		}
		return nil
	})
	s.do("delete", "pod", "first")
	s.do("wait", "--for=condition=Ready", "pod/second", "--timeout=180s")
}
