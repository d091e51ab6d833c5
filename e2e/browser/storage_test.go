package browser

import (
	"strings"
	"testing"
)

// storage are claims: one that a pod uses, one that no pod uses, and one whose class does not exist.
const storage = `
apiVersion: v1
kind: Namespace
metadata: {name: storage}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: storage}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: unused, namespace: storage}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: wrong, namespace: storage}
spec: {storageClassName: none, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer, namespace: storage}
spec:
  containers: [{name: main, image: "IMAGE", args: [hello], volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

// TestStorage checks the volume, class, pods, usage and problems of claims, and that a problem disappears when it is fixed.
func TestStorage(t *testing.T) {
	apply(t, strings.ReplaceAll(storage, "IMAGE", image(t)))
	defer kubectl(t, "delete", "namespace", "storage", "--wait=false")
	kubectl(t, "-n", "storage", "wait", "--for=condition=Ready", "pod/writer", "--timeout=60s")
	volume := strings.TrimSpace(kubectl(t, "-n", "storage", "get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}"))
	class := strings.TrimSpace(kubectl(t, "-n", "storage", "get", "pvc", "data", "-o", "jsonpath={.spec.storageClassName}"))
	b := newTab(t, serve(t))
	b.open("/storage?ns=storage")
	row := func(claim, text string) {
		t.Helper()
		b.until(`[...document.querySelectorAll(".claims tbody tr")].some((r) => r.querySelector("a").textContent === "` + claim + `" && r.innerText.includes("` + text + `"))`)
	}
	b.see("3 claims, 2 with problems")
	for _, text := range []string{"Bound", volume, class, "writer", " of 64 MiB"} {
		row("data", text)
	}
	row("unused", "Pending because no pod uses it")
	row("wrong", "Pending because the StorageClass none does not exist")
	b.see(class + " (default)")
	b.shot("storage")
	kubectl(t, "-n", "storage", "delete", "pvc", "wrong")
	b.see("2 claims, 1 with problems")
	b.click(".claims a", "writer")
	b.until(`location.pathname === "/r/core/v1/pods/storage/writer"`)
	b.clean()
}
