package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/host/atomicfile"
)

// Records stores with which credentials images were pulled, so that a pod without such credentials cannot use
// an image that another pod has pulled. The records are files in Dir and survive restarts. Its methods are
// safe for concurrent use.
//
// https://kep.k8s.io/2535
type Records struct {
	// Dir is the directory of the records.
	Dir string
	// Policy decides when a pod must present credentials for an image that is present. Allowed are
	// the images that NeverVerifyAllowlistedImages exempts, without tag and digest; a trailing "/*"
	// matches all images below.
	Policy  kubeletv1beta1.ImagePullCredentialsVerificationPolicy
	Allowed []string
	Log     *slog.Logger
	// Metrics counts lookups. It may be nil.
	Metrics *telemetry.Images

	mu      sync.Mutex // guards the following fields
	loaded  bool
	pulled  map[string]*kubeletv1beta1.ImagePulledRecord // by the runtime's image reference
	intents map[string]int                               // number of pulls in progress, by image
	damaged map[string]bool                              // paths of files that cannot be decoded
}

// maxMatchingCredentials is the maximum number of Secrets recorded for an image because their content equals
// that of a recorded one.
const maxMatchingCredentials = 100

// ParseVerification returns an error if the policy is unknown, or if allowed is set or has invalid entries
// for that policy. It validates the kubelet configuration.
func ParseVerification(policy kubeletv1beta1.ImagePullCredentialsVerificationPolicy, allowed []string) error {
	switch policy {
	case "", kubeletv1beta1.NeverVerify, kubeletv1beta1.NeverVerifyPreloadedImages, kubeletv1beta1.AlwaysVerify:
		if len(allowed) > 0 {
			return fmt.Errorf("preloadedImagesVerificationAllowlist: can't set for %q imagePullCredentialsVerificationPolicy", policy)
		}
		return nil
	case kubeletv1beta1.NeverVerifyAllowlistedImages:
		for _, a := range allowed {
			name := strings.TrimSuffix(a, "/*")
			if repositoryOf(name) != name || strings.Contains(name, "*") || name == "" {
				return fmt.Errorf("preloadedImagesVerificationAllowlist: %q is not an image without tag and digest", a)
			}
		}
		return nil
	}
	return fmt.Errorf("imagePullCredentialsVerificationPolicy %q: want NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify", policy)
}

// repositoryOf returns an image name without tag and digest, such as "registry.k8s.io/pause", in which form the
// kubelet's configuration names images that need no credentials.
func repositoryOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		image = image[:i]
	}
	return image
}

// path returns the file of the record of name. kind is "pulling" or "pulled".
func (r *Records) path(kind, name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(r.Dir, kind, "sha256-"+hex.EncodeToString(sum[:]))
}

// Count returns the number of records on disk: begun of pulls that have started but not finished, and pulled
// of pulled images. It reads the records on first use.
func (r *Records) Count() (begun, pulled int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.load(); err != nil {
		return 0, 0, err
	}
	return len(r.intents), len(r.pulled), nil
}

// load reads the records from disk on the first call. It returns an error if a directory or file cannot be
// read. A record that cannot be decoded is logged; pods must present credentials for its image. The caller must hold
// mu.
func (r *Records) load() error {
	if r.loaded {
		return nil
	}
	r.pulled, r.intents, r.damaged = map[string]*kubeletv1beta1.ImagePulledRecord{}, map[string]int{}, map[string]bool{}
	for _, kind := range []string{"pulled", "pulling"} {
		dir := filepath.Join(r.Dir, kind)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("reading image pull records: %w", err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("reading image pull records: %w", err)
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "sha256-") {
				continue
			}
			raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return fmt.Errorf("reading image pull records: %w", err)
			}
			if err := r.decode(kind, raw); err != nil {
				r.damaged[filepath.Join(dir, e.Name())] = true
				r.Log.Warn("file about a finished or interrupted image pull is damaged; all pods must present pull credentials for the image until it is pulled again", "directory", dir, "file", e.Name(), "err", err)
			}
		}
	}
	r.loaded = true
	return nil
}

// decode adds a record of that kind from its file content raw. The caller must hold mu.
func (r *Records) decode(kind string, raw []byte) error {
	if kind == "pulling" {
		var intent kubeletv1beta1.ImagePullIntent
		if err := json.Unmarshal(raw, &intent); err != nil {
			return err
		}
		r.intents[intent.Image] = 0
		return nil
	}
	record := &kubeletv1beta1.ImagePulledRecord{}
	if err := json.Unmarshal(raw, record); err != nil {
		return err
	}
	if record.ImageRef == "" {
		return errors.New("imageRef is missing")
	}
	r.pulled[record.ImageRef] = record
	return nil
}

// write writes the record v of that kind and name to its file, atomically.
func (r *Records) write(kind, name string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding image pull record: %w", err)
	}
	return atomicfile.Write(atomicfile.File{Path: r.path(kind, name), Data: raw, Mode: 0o600})
}

// Begin records that a pull of image starts. If the kubelet exits during the pull, the record shows that the
// kubelet has pulled the image, so that it does not count as preloaded. The caller must call End.
func (r *Records) Begin(image string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.load(); err != nil {
		return err
	}
	if _, there := r.intents[image]; !there {
		intent := kubeletv1beta1.ImagePullIntent{Image: image}
		intent.Kind, intent.APIVersion = "ImagePullIntent", kubeletv1beta1.SchemeGroupVersion.String()
		if err := r.write("pulling", image, intent); err != nil {
			return err
		}
	}
	r.intents[image]++
	return nil
}

// End records that a pull of image has finished. ref is the runtime's image reference, or "" if the pull has
// failed. used is the credential with which the pull succeeded; without Secret and Account, all pods may use the
// image. Each Begin must be followed by one End.
func (r *Records) End(image, ref string, used Credential) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ref != "" {
		if err := r.add(image, ref, used); err != nil {
			return err
		}
	}
	if r.intents[image]--; r.intents[image] > 0 {
		return nil
	}
	delete(r.intents, image)
	if err := os.Remove(r.path("pulling", image)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing image pull intent: %w", err)
	}
	delete(r.damaged, r.path("pulling", image))
	return nil
}

// add records that the credential used gives access to the image with the runtime's reference ref. If it is
// neither of a secret nor of a service account, all pods of the node may use the image from then on. It does
// not write if this is recorded already. The caller must hold mu.
func (r *Records) add(image, ref string, used Credential) error {
	record := &kubeletv1beta1.ImagePulledRecord{ImageRef: ref}
	if old := r.pulled[ref]; old != nil {
		record = old.DeepCopy()
	}
	record.Kind, record.APIVersion = "ImagePulledRecord", kubeletv1beta1.SchemeGroupVersion.String()
	if record.CredentialMapping == nil {
		record.CredentialMapping = map[string]kubeletv1beta1.ImagePullCredentials{}
	}
	name := repositoryOf(image)
	of := record.CredentialMapping[name]
	switch {
	case of.NodePodsAccessible:
		return nil
	case used.Secret != nil:
		if slices.Contains(of.KubernetesSecrets, *used.Secret) {
			return nil
		}
		// Replace a record of the same secret with previous data.
		of.KubernetesSecrets = slices.DeleteFunc(of.KubernetesSecrets, func(s kubeletv1beta1.ImagePullSecret) bool {
			return s.UID == used.Secret.UID && s.Namespace == used.Secret.Namespace && s.Name == used.Secret.Name
		})
		of.KubernetesSecrets = append(of.KubernetesSecrets, *used.Secret)
	case used.Account != nil:
		if slices.Contains(of.KubernetesServiceAccounts, *used.Account) {
			return nil
		}
		of.KubernetesServiceAccounts = append(of.KubernetesServiceAccounts, *used.Account)
	default:
		of = kubeletv1beta1.ImagePullCredentials{NodePodsAccessible: true}
	}
	record.CredentialMapping[name], record.LastUpdatedTime = of, metav1.NewTime(time.Now())
	if err := r.write("pulled", ref, record); err != nil {
		return err
	}
	r.pulled[ref] = record
	delete(r.damaged, r.path("pulled", ref))
	return nil
}

// MustPull reports whether a pod must pull an image that is present in order to prove that it has access. there
// is the image, and credentials returns the pod's own credentials, without those of the node. Under the policy
// NeverVerify no pod must. A pinned image was provided by the operator and counts as preloaded, even if it was
// also pulled under another name.
func (r *Records) MustPull(image string, there *runtimeapi.Image, credentials func() ([]Credential, error)) (must bool, err error) {
	result := "credentialRecordFound"
	defer func() {
		switch {
		case err != nil:
			result = "error"
		case must:
			result = "mustAuthenticate"
		}
		r.Metrics.ImageChecked(result)
	}()
	if r.Policy == kubeletv1beta1.NeverVerify {
		result = "credentialPolicyAllowed"
		return false, nil
	}
	r.mu.Lock()
	if err := r.load(); err != nil {
		r.mu.Unlock()
		return false, err
	}
	ref := there.Id
	record := r.pulled[ref]
	_, begun := r.intents[image]
	begun = begun || r.damaged[r.path("pulled", ref)] || r.damaged[r.path("pulling", image)]
	r.mu.Unlock()
	if !r.requiresCredentials(image, (record != nil || begun) && !there.Pinned) {
		result = "credentialPolicyAllowed"
		return false, nil
	}
	if record == nil {
		return true, nil
	}
	of := record.CredentialMapping[repositoryOf(image)]
	if of.NodePodsAccessible {
		return false, nil
	}
	if len(of.KubernetesSecrets) == 0 && len(of.KubernetesServiceAccounts) == 0 {
		return true, nil
	}
	mine, err := credentials()
	if err != nil {
		return true, err
	}
	for _, c := range mine {
		switch {
		case c.Account != nil && slices.Contains(of.KubernetesServiceAccounts, *c.Account):
			return false, nil
		case c.Secret == nil:
			continue
		}
		for _, s := range of.KubernetesSecrets {
			same := s.UID == c.Secret.UID && s.Namespace == c.Secret.Namespace && s.Name == c.Secret.Name
			content := s.CredentialHash != "" && s.CredentialHash == c.Secret.CredentialHash
			if !same && !content {
				continue
			}
			if !(same && content) && len(of.KubernetesSecrets) < maxMatchingCredentials {
				r.mu.Lock()
				err := r.add(image, ref, c)
				r.mu.Unlock()
				if err != nil {
					r.Log.Warn("storing that another Secret gives access to an image failed; the pod may use the image, retrying when a pod with this Secret uses the image again", "image", image, "err", err)
				}
			}
			return false, nil
		}
	}
	return true, nil
}

// requiresCredentials reports whether the policy requires credentials for an image that is present on the node.
// pulled is true if the kubelet has pulled the image, and false if the image was preloaded.
func (r *Records) requiresCredentials(image string, pulled bool) bool {
	switch r.Policy {
	case kubeletv1beta1.AlwaysVerify:
		return true
	case kubeletv1beta1.NeverVerifyAllowlistedImages:
		if pulled {
			return true
		}
		name := repositoryOf(image)
		return !slices.ContainsFunc(r.Allowed, func(a string) bool {
			if below, ok := strings.CutSuffix(a, "*"); ok {
				return strings.HasPrefix(name, below)
			}
			return a == name
		})
	}
	return pulled
}

// Prune removes the records of images that are not in list, the images of the runtime. It keeps records that
// are newer than since, the time when the list was made.
func (r *Records) Prune(list []*runtimeapi.Image, since time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.load(); err != nil {
		return err
	}
	there := map[string]bool{}
	for _, i := range list {
		there[i.Id] = true
	}
	var errs []error
	for ref, record := range r.pulled {
		if there[ref] || !record.LastUpdatedTime.Time.Before(since) {
			continue
		}
		if err := os.Remove(r.path("pulled", ref)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing image pull record: %w", err))
			continue
		}
		delete(r.pulled, ref)
	}
	return errors.Join(errs...)
}

// Recover processes the pulls that a previous kubelet had begun but not finished: images that the runtime has
// are recorded as pulled with unknown credentials, so that pods must present credentials for them.
func (r *Records) Recover(ctx context.Context, images runtimeapi.ImageServiceClient) error {
	r.mu.Lock()
	err := r.load()
	var left []string
	for image, n := range r.intents {
		if n == 0 {
			left = append(left, image)
		}
	}
	r.mu.Unlock()
	if err != nil || len(left) == 0 {
		return err
	}
	var errs []error
	for _, image := range left {
		name, err := normalize(image)
		if err != nil {
			name = image
		}
		resp, err := images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		if err != nil {
			errs = append(errs, fmt.Errorf("getting the image of an interrupted pull: %w", err))
			continue
		}
		r.mu.Lock()
		if ref := resp.GetImage().GetId(); ref != "" && r.pulled[ref] == nil {
			record := &kubeletv1beta1.ImagePulledRecord{ImageRef: ref, LastUpdatedTime: metav1.NewTime(time.Now())}
			record.Kind, record.APIVersion = "ImagePulledRecord", kubeletv1beta1.SchemeGroupVersion.String()
			if err := r.write("pulled", ref, record); err != nil {
				errs = append(errs, err)
				r.mu.Unlock()
				continue
			}
			r.pulled[ref] = record
		}
		if r.intents[image] == 0 {
			delete(r.intents, image)
			_ = os.Remove(r.path("pulling", image))
		}
		r.mu.Unlock()
	}
	return errors.Join(errs...)
}
