package staticpod

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	const name = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: "
	for spec, want := range map[string]string{
		"{containers: [{name: c, image: i}], volumes: [{name: a, hostPath: {path: /x}}, {name: b, emptyDir: {}}, {name: d, projected: {sources: [{downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.name}}]}}]}}]}": "",
		"{containers: [{name: ../../c, image: i}]}":                                                              "invalid pod: [spec.containers[0].name: Invalid value",
		"{containers: [{name: c, image: i, ports: [{containerPort: 99999}]}]}":                                   "invalid pod: [spec.containers[0].ports[0].containerPort: Invalid value",
		"{containers: [{name: c, image: i}], serviceAccountName: s}":                                             "static pods may not reference serviceaccounts",
		"{containers: [{name: c, image: i, envFrom: [{secretRef: {name: s}}]}]}":                                 "static pods may not reference secrets",
		"{containers: [{name: c, image: i}], imagePullSecrets: [{name: s}]}":                                     "static pods may not reference secrets",
		"{containers: [{name: c, image: i, env: [{name: E, valueFrom: {configMapKeyRef: {name: m, key: k}}}]}]}": "static pods may not reference configmaps",
		"{containers: [{name: c, image: i}], volumes: [{name: a, configMap: {name: m}}]}":                        "static pods may not reference configmaps",
		"{containers: [{name: c, image: i}], volumes: [{name: a, persistentVolumeClaim: {claimName: m}}]}":       "static pods may not reference persistentvolumeclaims",
		"{containers: [{name: c, image: i}], volumes: [{name: a, projected: {sources: [{secret: {name: s}}]}}]}": "static pods may not reference secrets",
	} {
		_, err := decodeFile([]byte(name+spec+"\n"), "/x.yaml", "n")
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
}

// TestFile checks that the path may be that of a single manifest.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.yaml")
	write := func(image string) {
		t.Helper()
		manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: " + image + "}]}\n"
		if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("i")
	first, expect := runSource(t, path)
	expect("set web-n")
	<-first
	write("j")
	expect("remove", "set web-n")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("remove")
	write("k")
	expect("set web-n")
}
