package pullcredentials

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1 "k8s.io/kubelet/config/v1"
	providerv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

// execTimeout is how long a provider program may run.
const execTimeout = time.Minute

// maxResponseSize is the maximum size in bytes of a provider's output. Longer output is truncated.
const maxResponseSize = 1 << 20

// Config is the configuration of Providers. All fields are required unless their comment says
// otherwise.
type Config struct {
	Providers []kubeletv1.CredentialProvider
	// Dir is the directory of the provider binaries.
	Dir string
	// Match reports whether an image matches a matchImages pattern.
	Match func(pattern, image string) bool
	// Account gets the service account of a pod. Token requests a token of that account, bound to the pod,
	// for an audience. Both may be nil if no provider uses service account tokens.
	Account func(ctx context.Context, pod *v1.Pod) (*v1.ServiceAccount, error)
	Token   func(ctx context.Context, pod *v1.Pod, audience string) (string, error)
	// Now returns the current time. The default is time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// Providers runs the node's credential provider programs, and caches their responses as long as the responses
// specify. Its methods are safe for concurrent use. A nil Providers has no credentials.
type Providers struct {
	cfg Config

	mu      sync.Mutex // guards the following fields
	cache   map[string]answer
	flights map[string]*flight
}

// answer is a cached response: the credentials by image pattern, and until when they may be used.
type answer struct {
	auth  map[string]providerv1.AuthConfig
	until time.Time
}

// flight is a run of a provider that is in progress. done is closed when the other fields are set.
type flight struct {
	done chan struct{}
	auth map[string]providerv1.AuthConfig
	err  error
}

// Credential is a credential that a provider has returned for an image pull.
type Credential struct {
	Auth *runtimeapi.AuthConfig
	// Account is the service account whose token the credential was requested with. If it is nil,
	// the credential applies to all pods.
	Account *v1.ServiceAccount
}

// New returns Providers. It returns an error if a provider program does not exist in Dir or is not
// executable.
func New(cfg Config) (*Providers, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	for i := range cfg.Providers {
		path := filepath.Join(cfg.Dir, cfg.Providers[i].Name)
		info, err := os.Stat(path)
		if err == nil && (info.IsDir() || info.Mode()&0o111 == 0) {
			err = errors.New("not an executable file")
		}
		if err != nil {
			return nil, fmt.Errorf("credential provider %s: %w", path, err)
		}
	}
	return &Providers{cfg: cfg, cache: map[string]answer{}, flights: map[string]*flight{}}, nil
}

// For returns the credentials that all providers whose matchImages match the image return for it, in the
// order of the providers. A provider that fails is logged and skipped.
func (p *Providers) For(ctx context.Context, pod *v1.Pod, image string) []Credential {
	if p == nil {
		return nil
	}
	var out []Credential
	for i := range p.cfg.Providers {
		one := &p.cfg.Providers[i]
		if !slices.ContainsFunc(one.MatchImages, func(m string) bool { return p.cfg.Match(m, image) }) {
			continue
		}
		list, err := p.getCredentials(ctx, one, pod, image)
		if err != nil {
			if ctx.Err() == nil {
				p.cfg.Log.Warn("image credential provider failed; the image is pulled without credentials of this provider, which may fail, calling the provider again at the next pull", "provider", one.Name, "image", image, "pod", pod.Namespace+"/"+pod.Name, "err", err)
			}
			continue
		}
		out = append(out, list...)
	}
	return out
}

// UsesServiceAccounts reports whether a provider whose matchImages match the image uses the service account
// of the pod.
func (p *Providers) UsesServiceAccounts(image string) bool {
	if p == nil {
		return false
	}
	for i := range p.cfg.Providers {
		one := &p.cfg.Providers[i]
		if one.TokenAttributes != nil && slices.ContainsFunc(one.MatchImages, func(m string) bool { return p.cfg.Match(m, image) }) {
			return true
		}
	}
	return false
}

// Account returns the pod's service account. It returns nil if the pod has none or no service accounts are
// configured.
func (p *Providers) Account(ctx context.Context, pod *v1.Pod) (*v1.ServiceAccount, error) {
	if p == nil || pod.Spec.ServiceAccountName == "" || p.cfg.Account == nil {
		return nil, nil
	}
	return p.cfg.Account(ctx, pod)
}

// getCredentials returns the credentials that one provider returns for the image, those with the most
// specific pattern first. It returns none if the provider requires a service account and the pod has none.
func (p *Providers) getCredentials(ctx context.Context, one *kubeletv1.CredentialProvider, pod *v1.Pod, image string) ([]Credential, error) {
	request := providerv1.CredentialProviderRequest{Image: image}
	request.Kind, request.APIVersion = "CredentialProviderRequest", one.APIVersion
	var account *v1.ServiceAccount
	suffix := ""
	if t := one.TokenAttributes; t != nil {
		var err error
		if account, err = p.Account(ctx, pod); err != nil {
			return nil, fmt.Errorf("getting the pod's service account: %w", err)
		}
		if account == nil && *t.RequireServiceAccount {
			return nil, nil
		}
		if account != nil {
			if request.ServiceAccountAnnotations, err = annotations(t, account); err != nil {
				return nil, err
			}
			if request.ServiceAccountToken, err = p.cfg.Token(ctx, pod, t.ServiceAccountTokenAudience); err != nil {
				return nil, err
			}
			raw, err := json.Marshal(request.ServiceAccountAnnotations)
			if err != nil {
				return nil, err
			}
			key := []string{account.Namespace, account.Name, string(account.UID), string(raw)}
			if t.CacheType == kubeletv1.TokenServiceAccountTokenCacheType {
				key = append(key, request.ServiceAccountToken)
			}
			sum := sha256.Sum256([]byte(strings.Join(key, "\x00")))
			suffix = "\x00" + hex.EncodeToString(sum[:])
		}
	}
	auth, err := p.cached(ctx, one, request, suffix)
	if err != nil {
		return nil, err
	}
	// Longer patterns come first, and patterns without wildcards before those with them.
	keys := slices.SortedFunc(maps.Keys(auth), func(a, b string) int { return cmp.Compare(b, a) })
	var out []Credential
	for _, key := range keys {
		if p.cfg.Match(key, image) {
			a := auth[key]
			out = append(out, Credential{Auth: &runtimeapi.AuthConfig{Username: a.Username, Password: a.Password}, Account: account})
		}
	}
	return out, nil
}

// annotations returns the annotations of the service account that the provider requires or accepts. A missing
// required annotation is an error.
func annotations(t *kubeletv1.ServiceAccountTokenAttributes, account *v1.ServiceAccount) (map[string]string, error) {
	out := map[string]string{}
	for _, key := range t.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok {
			return nil, fmt.Errorf("required annotation %q not found in service account %s/%s", key, account.Namespace, account.Name)
		}
		out[key] = value
	}
	for _, key := range t.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[key]; ok {
			out[key] = value
		}
	}
	return out, nil
}

// splitImage returns the registry of an image, and the image without tag and digest. A provider's response can be
// cached for either of them.
func splitImage(image string) (registry, repository string) {
	repository, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		repository = repository[:i]
	}
	registry, _, _ = strings.Cut(repository, "/")
	return registry, repository
}

// cached returns the cached response of a provider for the request r, or runs the provider. If the response depends
// on the service account, suffix distinguishes its cache entries from those of other service accounts; otherwise it
// is empty. Concurrent calls for the same request share one run.
func (p *Providers) cached(ctx context.Context, one *kubeletv1.CredentialProvider, r providerv1.CredentialProviderRequest, suffix string) (map[string]providerv1.AuthConfig, error) {
	registry, repository := splitImage(r.Image)
	keys := map[providerv1.PluginCacheKeyType]string{
		providerv1.ImagePluginCacheKeyType:    one.Name + "\x00image\x00" + repository + suffix,
		providerv1.RegistryPluginCacheKeyType: one.Name + "\x00registry\x00" + registry + suffix,
		providerv1.GlobalPluginCacheKeyType:   one.Name + "\x00global" + suffix,
	}
	flying := one.Name + "\x00" + r.Image + suffix
	for {
		now := p.cfg.Now()
		p.mu.Lock()
		for _, key := range keys {
			if a, ok := p.cache[key]; ok && now.Before(a.until) {
				p.mu.Unlock()
				return a.auth, nil
			}
		}
		if f := p.flights[flying]; f != nil {
			p.mu.Unlock()
			select {
			case <-f.done:
				if errors.Is(f.err, context.Canceled) && ctx.Err() == nil {
					continue
				}
				return f.auth, f.err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		f := &flight{done: make(chan struct{})}
		p.flights[flying] = f
		p.mu.Unlock()
		var resp *providerv1.CredentialProviderResponse
		resp, f.err = p.run(ctx, one, r)
		p.mu.Lock()
		delete(p.flights, flying)
		if f.err == nil {
			key, known := keys[resp.CacheKeyType]
			if f.auth = resp.Auth; !known {
				f.auth, f.err = nil, fmt.Errorf("credential provider plugin did not return a valid cacheKeyType: %q", resp.CacheKeyType)
			} else {
				hold := one.DefaultCacheDuration.Duration
				if resp.CacheDuration != nil {
					hold = resp.CacheDuration.Duration
				}
				for k, a := range p.cache {
					if !now.Before(a.until) {
						delete(p.cache, k)
					}
				}
				if hold > 0 {
					p.cache[key] = answer{auth: resp.Auth, until: p.cfg.Now().Add(hold)}
				}
			}
		}
		p.mu.Unlock()
		close(f.done)
		return f.auth, f.err
	}
}

// run runs the program of a provider, with the request as its input, and returns its response. If the program
// fails, the error has what it has written to standard error.
func (p *Providers) run(ctx context.Context, one *kubeletv1.CredentialProvider, r providerv1.CredentialProviderRequest) (*providerv1.CredentialProviderResponse, error) {
	in, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(p.cfg.Dir, one.Name), one.Args...)
	cmd.Env = os.Environ()
	for _, e := range one.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	// Do not wait for child processes that keep the output open.
	cmd.WaitDelay = time.Second
	out, wrong := &limitedBuffer{}, &limitedBuffer{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), out, wrong
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("error execing credential provider plugin %s: %w: %s", one.Name, err, strings.TrimSpace(wrong.String()))
	}
	return decodeResponse(out.Bytes(), one.APIVersion)
}

// decodeResponse decodes the output of a provider. version is the API version that the response must have;
// another one is an error.
func decodeResponse(raw []byte, version string) (*providerv1.CredentialProviderResponse, error) {
	resp := &providerv1.CredentialProviderResponse{}
	if err := json.Unmarshal(raw, resp); err != nil {
		return nil, fmt.Errorf("error decoding credential provider plugin response from stdout: %w", err)
	}
	want := metav1.TypeMeta{Kind: "CredentialProviderResponse", APIVersion: version}
	if resp.TypeMeta != want {
		return nil, fmt.Errorf("apiVersion from credential plugin response did not match expected apiVersion:%s, actual apiVersion:%s of kind %s", version, resp.APIVersion, resp.Kind)
	}
	return resp, nil
}

// limitedBuffer is a buffer that discards data beyond the maximum response size.
type limitedBuffer struct{ bytes.Buffer }

// Write appends p. It always reports success, so that the program can continue.
func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := maxResponseSize - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
