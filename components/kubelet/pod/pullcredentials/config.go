// Package pullcredentials runs the node's credential provider plugins to get the credentials for image
// pulls.
//
// https://kubernetes.io/docs/tasks/administer-cluster/kubelet-credential-provider/
package pullcredentials

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	kubeletv1 "k8s.io/kubelet/config/v1"
	providerv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"sigs.k8s.io/yaml"
)

// Load reads and validates the credential providers of a CredentialProviderConfig file, or of a directory of
// such files in lexical order. A directory without such files is an error.
func Load(path string) ([]kubeletv1.CredentialProvider, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("reading credential providers: %w", err)
	}
	files := []string{path}
	if info.IsDir() {
		files = nil
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, fmt.Errorf("reading credential providers: %w", err)
		}
		for _, e := range entries {
			if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".json" || ext == ".yaml" || ext == ".yml") {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("reading credential providers: no configuration files found in directory %q", path)
		}
	}
	var out []kubeletv1.CredentialProvider
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("reading credential providers: %w", err)
		}
		list, err := decode(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		out = append(out, list...)
	}
	if err := validate(out); err != nil {
		return nil, fmt.Errorf("validating credential providers: %w", err)
	}
	return out, nil
}

// decode decodes a CredentialProviderConfig in YAML or JSON. Unknown fields and another kind or API version are
// an error.
func decode(raw []byte) ([]kubeletv1.CredentialProvider, error) {
	var c kubeletv1.CredentialProviderConfig
	if err := yaml.UnmarshalStrict(raw, &c); err != nil {
		return nil, err
	}
	if want := kubeletv1.SchemeGroupVersion.String(); c.Kind != "CredentialProviderConfig" || c.APIVersion != want {
		return nil, fmt.Errorf("want a CredentialProviderConfig of %s, got %q of %q", want, c.Kind, c.APIVersion)
	}
	return c.Providers, nil
}

// validate returns an error that describes all invalid fields of the providers.
func validate(list []kubeletv1.CredentialProvider) error {
	var errs []error
	if len(list) == 0 {
		errs = append(errs, errors.New("at least 1 item in plugins is required"))
	}
	names := map[string]bool{}
	for i := range list {
		p := &list[i]
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("provider %q: "+format, append([]any{p.Name}, args...)...))
		}
		switch {
		case p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ "):
			bad("the name must be that of a program, without space and path")
		case names[p.Name]:
			bad("the name is there twice")
		}
		names[p.Name] = true
		if want := providerv1.SchemeGroupVersion.String(); p.APIVersion != want {
			bad("apiVersion %q is not supported, want %s", p.APIVersion, want)
		}
		if len(p.MatchImages) == 0 {
			bad("matchImages is required")
		}
		for _, m := range p.MatchImages {
			if _, err := filepath.Match(m, ""); err != nil || m == "" {
				bad("match image %q is not one", m)
			}
		}
		if p.DefaultCacheDuration == nil || p.DefaultCacheDuration.Duration < 0 {
			bad("defaultCacheDuration is required and must not be negative")
		}
		if t := p.TokenAttributes; t != nil {
			if t.ServiceAccountTokenAudience == "" {
				bad("tokenAttributes.serviceAccountTokenAudience is required")
			}
			if t.CacheType != kubeletv1.ServiceAccountServiceAccountTokenCacheType && t.CacheType != kubeletv1.TokenServiceAccountTokenCacheType {
				bad("tokenAttributes.cacheType %q: want ServiceAccount or Token", t.CacheType)
			}
			if t.RequireServiceAccount == nil {
				bad("tokenAttributes.requireServiceAccount is required")
			} else if !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0 {
				bad("tokenAttributes.requireServiceAccount must be true when requiredServiceAccountAnnotationKeys has any")
			}
			var seen []string
			for _, key := range slices.Concat(t.RequiredServiceAccountAnnotationKeys, t.OptionalServiceAccountAnnotationKeys) {
				if list := validation.IsQualifiedName(strings.ToLower(key)); len(list) > 0 {
					bad("annotation key %q: %s", key, strings.Join(list, "; "))
				}
				if slices.Contains(seen, key) {
					bad("annotation key %q is there twice", key)
				}
				seen = append(seen, key)
			}
		}
	}
	return errors.Join(errs...)
}
