// Package manifests contains the embedded manifests: add-ons, and the static pods of control plane
// nodes.
package manifests

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

//go:embed addons/*.yaml optional/*.yaml controlplane/*.yaml
var files embed.FS

// Values are the template values of add-ons.
type Values struct {
	// Image is the reference of the built-in image.
	Image string
	// DNSAddress is the cluster IP of the DNS Service. Domain is the DNS domain of the cluster.
	DNSAddress, Domain string
}

// Addons returns the objects of all default add-ons, in the order in which they must be applied.
func Addons(v Values) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	err := fs.WalkDir(files, "addons", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		list, err := render(name, v)
		objects = append(objects, list...)
		return err
	})
	return objects, err
}

// Optional returns the names of add-ons that are installed on request.
func Optional() []string { return []string{"metrics"} }

// Addon returns the objects of an optional add-on, in the order in which they must be applied.
// Unknown names are an error.
func Addon(name string, v Values) ([]*unstructured.Unstructured, error) {
	if !slices.Contains(Optional(), name) {
		return nil, fmt.Errorf("unknown add-on %q: must be one of %s", name, strings.Join(Optional(), ", "))
	}
	return render("optional/"+name+".yaml", v)
}

// render returns the objects in the embedded manifest name, a template that is executed with
// values.
func render(name string, values any) ([]*unstructured.Unstructured, error) {
	tmpl, err := template.New("").Option("missingkey=error").ParseFS(files, name)
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", name, err)
	}
	var text bytes.Buffer
	if err := tmpl.ExecuteTemplate(&text, path.Base(name), values); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", name, err)
	}
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(&text, 4096)
	for {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(&obj.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("manifest %s: %w", name, err)
		}
		if len(obj.Object) > 0 {
			objects = append(objects, obj)
		}
	}
}
