package pod

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestPodCertificate(t *testing.T) {
	for name, test := range map[string]struct {
		source string
		want   []string
	}{
		"good":       {"{signerName: example.com/s, keyType: ED25519, credentialBundlePath: a}", nil},
		"too short":  {"{signerName: example.com/s, keyType: ED25519, keyPath: a, maxExpirationSeconds: 3599}", []string{"x.maxExpirationSeconds: Invalid value: 3599: if provided, maxExpirationSeconds must be >= 3600"}},
		"too long":   {"{signerName: example.com/s, keyType: ED25519, keyPath: a, maxExpirationSeconds: 7862401}", []string{"x.maxExpirationSeconds: Invalid value: 7862401: if provided, maxExpirationSeconds must be <= 7862400"}},
		"for a day":  {"{signerName: kubernetes.io/s, keyType: ED25519, keyPath: a, maxExpirationSeconds: 86401}", []string{"x.maxExpirationSeconds: Invalid value: 86401: if provided, maxExpirationSeconds must be <= 86400"}},
		"no file":    {"{signerName: example.com/s, keyType: ED25519}", []string{"x: Required value: specify at least one of credentialBundlePath, keyPath, and certificateChainPath"}},
		"bad files":  {"{signerName: example.com/s, keyType: ED25519, credentialBundlePath: /a, keyPath: ../b, certificateChainPath: ..c}", []string{`x.credentialBundlePath: Invalid value: "/a": must be a relative path`, `x.keyPath: Invalid value: "../b": must not contain '..'`, `x.certificateChainPath: Invalid value: "..c": must not start with '..'`}},
		"other keys": {"{signerName: example.com/s, keyType: DSA, keyPath: a}", []string{`x.keyType: Unsupported value: "DSA": supported values: "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"`}},
	} {
		p := parse(t, "{spec: {volumes: [{name: v, projected: {sources: [{podCertificate: "+test.source+"}]}}]}}")
		t.Run(name, func(t *testing.T) {
			c := newChecker(&p.Spec, true, "p")
			checkPodCertificate(&c.Errors, p.Spec.Volumes[0].Projected.Sources[0].PodCertificate, field.NewPath("x"))
			check(t, c.List, test.want...)
		})
	}
}

func TestFileKeyRef(t *testing.T) {
	for name, test := range map[string]struct {
		ref  string
		want []string
	}{
		"good":     {"{volumeName: e, path: env, key: A}", nil},
		"nothing":  {"{}", []string{"x.key: Required value", "x.volumeName: Required value", "x.path: Required value", `spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found: ""`}},
		"no such":  {"{volumeName: f, path: env, key: A}", []string{`spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found: "f"`}},
		"not ours": {"{volumeName: h, path: ../env, key: A}", []string{`x.path: Invalid value: "../env": must not contain '..'`, `spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Invalid value: "h": referenced volume must be of type emptyDir`}},
	} {
		p := parse(t, "{spec: {volumes: [{name: e, emptyDir: {}}, {name: h, hostPath: {path: /}}], containers: [{name: c, env: [{name: A, valueFrom: {fileKeyRef: "+test.ref+"}}]}]}}")
		t.Run(name, func(t *testing.T) {
			c := newChecker(&p.Spec, true, "p")
			checkFileKeyRef(&c.Errors, p.Spec.Containers[0].Env[0].ValueFrom.FileKeyRef, field.NewPath("x"))
			checkFileKeyVolumes(&c.Errors, c.spec, field.NewPath("spec"))
			check(t, c.List, test.want...)
		})
	}
}
