package config

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

// LoadFiles returns the KubeletConfiguration in the file path, with the .conf files of the directory dir
// merged into it in lexical order, and finally the fields in over, by field path, set. Each may be empty.
// Maps are merged, lists are replaced. The result is nil if all are empty. It returns an error if a file is
// not valid.
//
// https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/
func LoadFiles(path, dir string, over map[string]any) (*kubeletv1beta1.KubeletConfiguration, error) {
	return Load(nil, path, dir, over)
}

// Load is LoadFiles with a KubeletConfiguration in YAML or JSON, base, into which the files are merged. base
// may be empty. The result is nil if all are empty.
func Load(base []byte, path, dir string, over map[string]any) (*kubeletv1beta1.KubeletConfiguration, error) {
	all, err := MergeFiles(base, path, dir)
	if err != nil || all == nil && len(over) == 0 {
		return nil, err
	}
	if all == nil {
		all = map[string]any{}
	}
	all["kind"], all["apiVersion"] = "KubeletConfiguration", kubeletv1beta1.SchemeGroupVersion.String()
	for path, value := range over {
		setField(all, strings.Split(path, "."), value)
	}
	raw, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("merging kubelet configuration: %w", err)
	}
	return decodeFile(raw)
}

// MergeFiles returns the fields that base and the files of Load set. It returns nil if all are empty.
func MergeFiles(base []byte, path, dir string) (map[string]any, error) {
	if len(base) == 0 && path == "" && dir == "" {
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
	if len(base) > 0 {
		if err := mergeFile(all, base); err != nil {
			return nil, err
		}
	}
	for _, p := range paths {
		raw, err := os.ReadFile(p)
		if err != nil {
			return nil, fmt.Errorf("reading kubelet configuration: %w", err)
		}
		if err := mergeFile(all, raw); err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
	}
	return all, nil
}

// mergeFile validates the KubeletConfiguration in raw and merges it to all.
func mergeFile(all map[string]any, raw []byte) error {
	if _, err := decodeFile(raw); err != nil {
		return err
	}
	var part map[string]any
	if err := yaml.Unmarshal(raw, &part); err != nil {
		return err
	}
	merge(all, part)
	return nil
}

// setField sets the field at a path of nested maps, and creates missing maps.
func setField(all map[string]any, path []string, value any) {
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

// dropIns lists the .conf files of dir and its subdirectories in lexical order of their paths.
func dropIns(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(d.Name(), ".conf") {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading kubelet configuration: %w", err)
	}
	return out, nil
}

// merge merges the configuration from into to, and modifies to. A null value in from deletes the field.
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
