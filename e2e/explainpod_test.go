package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// brokenPods are pods that do not run, each for another reason. The name of a pod is that of the cause.
const brokenPods = `
apiVersion: v1
kind: Pod
metadata: {name: registry}
spec: {containers: [{name: c, image: "registry.invalid/app:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: never}
spec: {containers: [{name: c, image: "missing:1", imagePullPolicy: Never}]}
---
apiVersion: v1
kind: Pod
metadata: {name: config}
spec: {containers: [{name: c, image: IMAGE, args: [hello], envFrom: [{configMapRef: {name: settings}}]}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: partial}
---
apiVersion: v1
kind: Pod
metadata: {name: key}
spec: {containers: [{name: c, image: IMAGE, args: [hello], env: [{name: URL, valueFrom: {configMapKeyRef: {name: partial, key: url}}}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: secret}
spec:
  containers: [{name: c, image: IMAGE, args: [hello], volumeMounts: [{name: s, mountPath: /s}]}]
  volumes: [{name: s, secret: {secretName: password}}]
---
apiVersion: v1
kind: Pod
metadata: {name: selector}
spec: {nodeSelector: {disk: ssd}, containers: [{name: c, image: IMAGE, args: [hello]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: cpu}
spec: {containers: [{name: c, image: IMAGE, args: [hello], resources: {requests: {cpu: "1000"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: claim}
spec:
  containers: [{name: c, image: IMAGE, args: [hello]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: none}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: class}
spec:
  containers: [{name: c, image: IMAGE, args: [hello]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata: {name: crash}
spec: {containers: [{name: c, image: IMAGE, args: [no-such-command]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: command}
spec: {containers: [{name: c, image: IMAGE, command: [/no-such-file]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: readiness}
spec: {containers: [{name: c, image: IMAGE, args: [hello], readinessProbe: {httpGet: {port: 9, path: /}, periodSeconds: 1}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: gate}
spec: {readinessGates: [{conditionType: example.com/ready}], containers: [{name: c, image: IMAGE, args: [hello]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: finalizer, finalizers: [example.com/keep]}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: IMAGE, args: [hello]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: good}
spec: {containers: [{name: c, image: IMAGE, args: [hello]}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: full}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: small, namespace: full}
spec: {hard: {pods: "0"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: full}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: IMAGE, args: [hello]}]}
`

// TestExplainPod creates pods that do not run, and compares the explanations.
func TestExplainPod(t *testing.T) {
	t.Parallel()
	m := newNetworked(t, "198.18.62.1/24")
	m.hyperkube("up", "--root", m.root)
	m.apply(brokenPods)
	m.kubectl("wait", "--for=condition=Ready", "pod/good", "--timeout=60s")
	m.kubectl("delete", "pod", "finalizer", "--wait=false")
	for name, want := range map[string]string{
		"registry":  `its image "registry.invalid/app:1" cannot be pulled, because the node does not reach the registry`,
		"never":     `its image "missing:1" is not on the node, and imagePullPolicy is Never.`,
		"config":    `Problem: The container "c" cannot start, because the ConfigMap "settings" does not exist.`,
		"key":       `Problem: The container "c" cannot start, because the ConfigMap "default/partial" has no key "url".`,
		"secret":    `Problem: The pod cannot start, because it mounts the Secret "password", which does not exist.`,
		"selector":  `Problem: 1 of 1 nodes do not match the nodeSelector or the node affinity of the pod.`,
		"cpu":       `Problem: 1 of 1 nodes do not have enough free cpu for the requests of the pod.`,
		"claim":     `Problem: The pod uses the PersistentVolumeClaim "none", which does not exist.`,
		"class":     `Problem: The claim "data" uses the StorageClass "fast", which does not exist.`,
		"crash":     `so the kubelet delays its next start with an error (exit code 1).`,
		"command":   `because its command does not exist in the image:`,
		"readiness": `Problem: The container "c" is running, but its readiness probe has not succeeded: the pod gets no traffic from Services. The last result: Get "http://`,
		"gate":      `Problem: The pod is not ready, because the condition "example.com/ready" of its readiness gate is not set.`,
		"finalizer": `Problem: The pod is being deleted, but it stays until its finalizers are removed: example.com/keep.`,
		"good":      "No problem was found.",
	} {
		m.eventually(60*time.Second, func() error {
			out, err := m.command(m.binary, "explain-pod", name).CombinedOutput()
			if err != nil || !strings.Contains(string(out), want) {
				return fmt.Errorf("explain-pod %s: %w, want %q in\n%s", name, err, want, out)
			}
			return nil
		})
		if out := m.hyperkube("explain-pod", name); !strings.HasPrefix(out, "Pod default/"+name+" is ") || strings.Count(out, "Problem: ") > 1 {
			t.Errorf("%s:\n%s", name, out)
		}
	}
	m.eventually(30*time.Second, func() error {
		if out := m.hyperkube("explain-pod", "deployment/web", "-n", "full"); !strings.Contains(out, `because the ResourceQuota "small" is used up: Requested: pods=1, used: pods=0, limited: pods=0.`) {
			return fmt.Errorf("got %s", out)
		}
		return nil
	})
	m.prints(`"reason": "QuotaExceeded"`, "explain-pod", "web", "-n", "full", "-o", "json")
	m.fails(`has no pod, Deployment`, "explain-pod", "none")

	// A user who may read only pods gets an explanation, and what is missing.
	m.kubectl("create", "role", "pods", "--verb=get,list", "--resource=pods")
	m.kubectl("create", "serviceaccount", "reader")
	m.kubectl("create", "rolebinding", "pods", "--role=pods", "--serviceaccount=default:reader")
	token := strings.TrimSpace(m.kubectl("create", "token", "reader"))
	m.kubectl("config", "set-credentials", "reader", "--token="+token)
	m.kubectl("config", "set-context", "reader", "--cluster="+strings.TrimSpace(m.kubectl("config", "view", "--minify", "-o", "jsonpath={.contexts[0].context.cluster}")), "--user=reader")
	out := m.hyperkube("explain-pod", "config", "--context", "reader")
	for _, want := range []string{`the ConfigMap "settings" does not exist`, "Not read, so that causes may be missing: node", "(forbidden), events (forbidden)."} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is not in\n%s", want, out)
		}
	}
}
