package kubelet

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// LoadFiles reads a KubeletConfiguration of path, what the files of dir that
// end in .conf change of it, in the order of their names, and at last what over
// says of whole fields; each may be empty. Maps are merged, lists replaced. It is nil when there
// is nothing at all.
//
// https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/
func LoadFiles(path, dir string, over map[string]any) (*kubeletv1beta1.KubeletConfiguration, error) {
	if path == "" && dir == "" && len(over) == 0 {
		return nil, nil
	}
	var paths []string
	if path != "" {
		paths = append(paths, path)
	}
	if dir != "" {
		more, err := dropIns(dir)
		if err != nil {
			return nil, err
		}
		paths = append(paths, more...)
	}
	all := map[string]any{}
	for _, p := range paths {
		raw, err := os.ReadFile(p)
		if err != nil {
			return nil, fmt.Errorf("reading the kubelet's configuration: %w", err)
		}
		if _, err := decodeFile(raw); err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		var part map[string]any
		if err := yaml.Unmarshal(raw, &part); err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		merge(all, part)
	}
	all["kind"], all["apiVersion"] = "KubeletConfiguration", kubeletv1beta1.SchemeGroupVersion.String()
	for path, value := range over {
		put(all, strings.Split(path, "."), value)
	}
	raw, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("merging the kubelet's configuration: %w", err)
	}
	return decodeFile(raw)
}

// put sets a field that may be within others.
func put(all map[string]any, path []string, value any) {
	for _, name := range path[:len(path)-1] {
		inner, ok := all[name].(map[string]any)
		if !ok {
			inner = map[string]any{}
			all[name] = inner
		}
		all = inner
	}
	all[path[len(path)-1]] = value
}

// dropIns lists the files of dir and below that end in .conf, by name, those of a
// folder at its name's place.
func dropIns(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(d.Name(), ".conf") {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the kubelet's configuration: %w", err)
	}
	return out, nil
}

// merge puts from into to, which it changes; null takes a field away.
func merge(to, from map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(from)) {
		value := from[name]
		if value == nil {
			delete(to, name)
			continue
		}
		inner, ok := value.(map[string]any)
		if have, there := to[name].(map[string]any); ok && there {
			merge(have, inner)
			continue
		}
		to[name] = value
	}
}
