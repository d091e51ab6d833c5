package images

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/kubelet/cri/crifake"
)

func secret(name, password string) *v1.Secret {
	s := &v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{
		v1.DockerConfigJsonKey: []byte(`{"auths":{"r.example":{"username":"u","password":"` + password + `"}}}`),
	}}
	s.Namespace, s.Name, s.UID = "ns", name, types.UID(name)
	return s
}

func TestRecords(t *testing.T) {
	dir := t.TempDir()
	records := func(policy kubeletv1beta1.ImagePullCredentialsVerificationPolicy, allowed ...string) *Records {
		return &Records{Dir: dir, Policy: policy, Allowed: allowed, Log: slog.New(slog.DiscardHandler)}
	}
	rt := crifake.New("r.example/preloaded:1")
	p := NewPuller(rt)
	p.Records = records(kubeletv1beta1.NeverVerifyPreloadedImages)
	ensure := func(image string, policy v1.PullPolicy, secrets ...*v1.Secret) (pulled bool, err error) {
		t.Helper()
		list := func(context.Context) ([]Credential, error) { return Auths(image, secrets), nil }
		_, err = p.Ensure(t.Context(), Request{
			Pod: &v1.Pod{}, Image: image, Policy: policy, PodCredentials: list, AllCredentials: list,
			Event: func(_ bool, reason, _ string) { pulled = pulled || reason == "Pulling" },
		})
		return pulled, err
	}
	check := func(what, image string, want bool, secrets ...*v1.Secret) {
		t.Helper()
		got, err := ensure(image, v1.PullIfNotPresent, secrets...)
		if got != want || err != nil {
			t.Errorf("%s: pulled %v, %v; want %v", what, got, err, want)
		}
	}
	check("a preloaded image", "r.example/preloaded:1", false)
	check("the first", "r.example/a:1", true, secret("one", "p"))
	check("the same again", "r.example/a:1", false, secret("one", "p"))
	check("the same content", "r.example/a:1", false, secret("copy", "p"))
	check("other content of the same secret", "r.example/a:1", false, secret("one", "q"))
	check("another", "r.example/a:1", true, secret("two", "x"))
	check("none", "r.example/a:1", true)
	check("none again, for it needs none", "r.example/a:1", false, secret("three", "y"))
	check("alone", "r.example/b:1", true, secret("one", "p"))
	var e *Error
	if _, err := ensure("r.example/b:1", v1.PullNever); !errors.As(err, &e) || e.Reason != errImageNever {
		t.Errorf("never, without credentials: %v", err)
	}
	if _, err := ensure("r.example/b:1", v1.PullNever, secret("one", "p")); err != nil {
		t.Errorf("never, with credentials: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "pulling", "*")); len(left) != 0 {
		t.Errorf("left %v", left)
	}

	// A pinned image may be used even if it is pulled under another name.
	rt.Pin("r.example/b:1", true)
	check("a pinned image", "r.example/b:1", false)

	// Another kubelet reads the same records.
	rt.Pin("r.example/b:1", false)
	p.Records = records(kubeletv1beta1.NeverVerifyPreloadedImages)
	check("after a restart", "r.example/b:1", false, secret("one", "p"))
	check("another after a restart", "r.example/b:1", true, secret("two", "x"))

	p.Records = records(kubeletv1beta1.AlwaysVerify)
	check("a preloaded image, always", "r.example/preloaded:1", true)
	rt2 := crifake.New("r.example/team/x:1", "r.example/y:1")
	p = NewPuller(rt2)
	dir = t.TempDir()
	p.Records = records(kubeletv1beta1.NeverVerifyAllowlistedImages, "r.example/team/*")
	check("an allowed image", "r.example/team/x:1", false)
	check("one that is not", "r.example/y:1", true)
	p.Records = records(kubeletv1beta1.NeverVerify)
	check("policy NeverVerify", "r.example/y:1", false, secret("unverified", "n"))
}

func TestRecover(t *testing.T) {
	r := &Records{Dir: t.TempDir(), Policy: kubeletv1beta1.NeverVerifyPreloadedImages, Log: slog.New(slog.DiscardHandler)}
	for _, image := range []string{"r.example/there:1", "r.example/not:1"} {
		if err := r.Begin(image); err != nil {
			t.Fatal(err)
		}
	}
	rt := crifake.New("r.example/there:1")
	again := &Records{Dir: r.Dir, Policy: r.Policy, Log: r.Log}
	if err := again.Recover(t.Context(), rt); err != nil {
		t.Fatal(err)
	}
	none := func() ([]Credential, error) { return nil, nil }
	if must, err := again.MustPull("r.example/there:1", &runtimeapi.Image{Id: "sha256:r.example/there:1"}, none); !must || err != nil {
		t.Errorf("%v, %v", must, err)
	}
	if left, _ := os.ReadDir(filepath.Join(r.Dir, "pulling")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	if err := again.Prune([]*runtimeapi.Image{{Id: "other"}}, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Join(r.Dir, "pulled")); len(left) != 0 {
		t.Errorf("kept %v", left)
	}
}

// TestDamagedRecords checks that an image whose record cannot be decoded does not count as preloaded.
func TestDamagedRecords(t *testing.T) {
	for _, kind := range []string{"pulled", "pulling"} {
		t.Run(kind, func(t *testing.T) {
			newRecords := func(dir string) *Records {
				return &Records{Dir: dir, Policy: kubeletv1beta1.NeverVerifyPreloadedImages, Log: slog.New(slog.DiscardHandler)}
			}
			const image, ref = "r.example/a:1", "sha256:r.example/a:1"
			r := newRecords(t.TempDir())
			if err := r.Begin(image); err != nil {
				t.Fatal(err)
			}
			if kind == "pulled" {
				if err := r.End(image, ref, Credential{}); err != nil {
					t.Fatal(err)
				}
			}
			files, err := filepath.Glob(filepath.Join(r.Dir, kind, "*"))
			if err != nil || len(files) != 1 {
				t.Fatalf("records %v, %v", files, err)
			}
			if err := os.WriteFile(files[0], []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
			r = newRecords(r.Dir)
			expect := func(image string, want bool) {
				t.Helper()
				must, err := r.MustPull(image, &runtimeapi.Image{Id: "sha256:" + image}, func() ([]Credential, error) { return nil, nil })
				if must != want || err != nil {
					t.Errorf("%s: must pull: %t, %v, want %t", image, must, err, want)
				}
			}
			expect(image, true)
			expect("r.example/preloaded:1", false)
			// The next pull without credentials shows that all pods may use the image.
			if err := errors.Join(r.Begin(image), r.End(image, ref, Credential{})); err != nil {
				t.Fatal(err)
			}
			expect(image, false)
		})
	}
}

func TestParseVerification(t *testing.T) {
	for _, c := range []struct {
		policy  kubeletv1beta1.ImagePullCredentialsVerificationPolicy
		allowed []string
		refused string // part of the error; empty for none
	}{
		{"", nil, ""}, {"Some", nil, `"Some": want NeverVerify`}, {kubeletv1beta1.AlwaysVerify, []string{"a"}, `can't set for "AlwaysVerify"`},
		{kubeletv1beta1.NeverVerifyAllowlistedImages, []string{"r.example/a", "r.example:5000/b/*"}, ""},
		{kubeletv1beta1.NeverVerifyAllowlistedImages, []string{"r.example/a:1"}, `"r.example/a:1" is not an image without tag and digest`},
		{kubeletv1beta1.NeverVerifyAllowlistedImages, []string{"r.example/a@sha256"}, `"r.example/a@sha256" is not an image without`},
		{kubeletv1beta1.NeverVerifyAllowlistedImages, []string{"r.*/a"}, `"r.*/a" is not an image without`},
	} {
		err := ParseVerification(c.policy, c.allowed)
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s %v: %v, want %q", c.policy, c.allowed, err, c.refused)
		}
	}
}

func TestNodeAuths(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(`{"auths":{"r.example":{"auth":"dTpw"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	got := NodeAuths("r.example/a", []string{path + "none", path})
	if len(got) != 1 || got[0].Auth.Username != "u" || got[0].Secret != nil {
		t.Errorf("%v", got)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"imageRef":"x","credentialMapping":{"a":{"nodePodsAccessible":true}}}`))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		r := &Records{pulled: map[string]*kubeletv1beta1.ImagePulledRecord{}, intents: map[string]int{}}
		_ = r.decode("pulled", raw)
		_ = r.decode("pulling", raw)
	})
}
