package controlplane

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"hyperkube/manifests"
)

// patch is one patch of a static pod manifest: the file that contains it, its content, and the function that applies
// it.
type patch struct {
	file  string
	apply func(pod, patch []byte) ([]byte, error)
	data  []byte // JSON
}

// patches are the patches of a directory by component name, in the order of the file names.
//
// https://kubernetes.io/docs/setup/production-environment/tools/kubeadm/control-plane-flags/#patches
type patches map[string][]patch

// patchKinds maps the patch types in file names to functions that apply them.
var patchKinds = map[string]func(pod, patch []byte) ([]byte, error){
	"strategic": func(pod, patch []byte) ([]byte, error) {
		return strategicpatch.StrategicMergePatch(pod, patch, corev1.Pod{})
	},
	"merge": jsonpatch.MergePatch,
	"json": func(pod, patch []byte) ([]byte, error) {
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, err
		}
		return operations.Apply(pod)
	},
}

// readPatches reads the files in a directory that are named COMPONENT[SUFFIX][+KIND].yaml or .json.
// A patch for an unknown component is an error; files with other extensions are ignored. It returns
// no patches if dir is empty.
func readPatches(dir string) (patches, error) {
	out := patches{}
	if dir == "" {
		return out, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading patches: %w", err)
	}
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if e.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			continue
		}
		target, kind, err := patchNamed(e.Name())
		if err != nil {
			return nil, err
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading patches: %w", err)
		}
		documents, err := patchDocuments(data)
		if err != nil {
			return nil, fmt.Errorf("reading patch %s: %w", e.Name(), err)
		}
		for _, d := range documents {
			out[target] = append(out[target], patch{file: e.Name(), apply: patchKinds[kind], data: d})
		}
	}
	return out, nil
}

// patchNamed returns the component and the patch type from a file name.
func patchNamed(file string) (target, kind string, err error) {
	name, kind, hasKind := strings.Cut(strings.TrimSuffix(file, filepath.Ext(file)), "+")
	if !hasKind {
		kind = "strategic"
	}
	if patchKinds[kind] == nil || filepath.Ext(file) == ".yml" {
		return "", "", fmt.Errorf("patch %s: expected a name like kube-apiserver0+merge.yaml, with strategic, merge or json after the +", file)
	}
	for _, component := range manifests.Components() {
		if strings.HasPrefix(name, component) {
			return component, kind, nil
		}
	}
	return "", "", fmt.Errorf("patch %s does not match a component that can be patched: %s", file, strings.Join(manifests.Components(), ", "))
}

// patchDocuments returns the documents of a file as JSON. JSON files are valid YAML.
func patchDocuments(data []byte) ([][]byte, error) {
	var out [][]byte
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		text, err := yaml.YAMLToJSON(doc)
		if err != nil {
			return nil, err
		}
		if string(text) != "null" {
			out = append(out, text)
		}
	}
}

// apply returns the static pod manifest of a component with the component's patches applied in order. It returns an
// error if a result is not a valid Pod.
func (p patches) apply(component string, manifest []byte) ([]byte, error) {
	if len(p[component]) == 0 {
		return manifest, nil
	}
	pod, err := yaml.YAMLToJSON(manifest)
	if err != nil {
		return nil, fmt.Errorf("patching manifest of %s: %w", component, err)
	}
	for _, change := range p[component] {
		if pod, err = change.apply(pod, change.data); err != nil {
			return nil, fmt.Errorf("applying patch %s: %w", change.file, err)
		}
		if err := yaml.UnmarshalStrict(pod, &corev1.Pod{}); err != nil {
			return nil, fmt.Errorf("applying patch %s: the result is not a valid Pod: %w", change.file, err)
		}
	}
	return yaml.JSONToYAML(pod)
}
