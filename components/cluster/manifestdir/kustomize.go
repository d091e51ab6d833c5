package manifestdir

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// build returns the objects of a kustomization. Its files are in memory, so that kustomize reads no other files. It
// returns an error if the kustomization refers to files on other machines.
func build(u unit) ([]*unstructured.Unstructured, error) {
	if err := rejectRemote(u); err != nil {
		return nil, err
	}
	files := filesys.MakeFsInMemory()
	for name, data := range u.files {
		if err := files.WriteFile("/"+name, data); err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/"+u.name)
	if err != nil {
		return nil, err
	}
	text, err := built.AsYaml()
	if err != nil {
		return nil, err
	}
	objects, _, err := parse(u.name, text)
	return objects, err
}

// remote matches the address of a file or repository on another machine.
var remote = regexp.MustCompile(`://|^git::|^git@|^github\.com/|\.git(\?|$|/)|[?&]ref=`)

// rejectRemote returns an error if a kustomization file of the unit refers to files on other machines, because
// kustomize would run git or send HTTP requests.
func rejectRemote(u unit) error {
	for name, data := range u.files {
		if !slices.Contains(kustomizationFiles, path.Base(name)) {
			continue
		}
		var k map[string]any
		if err := yaml.Unmarshal(data, &k); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, key := range []string{"resources", "components", "bases", "crds", "configurations", "generators", "transformers", "validators", "patchesStrategicMerge"} {
			list, _ := k[key].([]any)
			for _, entry := range list {
				if text, ok := entry.(string); ok && remote.MatchString(text) && !strings.Contains(text, "\n") {
					return fmt.Errorf("%s: %s: files on other machines are not supported: copy %s into the directory", name, key, text)
				}
			}
		}
		if openapi, ok := k["openapi"].(map[string]any); ok {
			if text, ok := openapi["path"].(string); ok && remote.MatchString(text) {
				return fmt.Errorf("%s: openapi: files on other machines are not supported: copy %s into the directory", name, text)
			}
		}
	}
	return nil
}
