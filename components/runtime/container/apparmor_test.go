//go:build cgo

package container

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sysfs creates a directory like /sys with the given files.
func sysfs(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// parser creates a fake AppArmor parser that stores its input or fails. It returns a lookup
// function and the file with the stored input.
func parser(t *testing.T, fail bool) (find func() (string, error), kept string) {
	t.Helper()
	dir := t.TempDir()
	program, kept := filepath.Join(dir, "parser"), filepath.Join(dir, "kept")
	text := "#!/bin/sh\ncat > '" + kept + "'\n"
	if fail {
		text += "echo no such abstraction >&2\nexit 1\n"
	}
	if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return func() (string, error) { return program, nil }, kept
}

func noParser() (string, error) { return "", errors.New("not found") }

const (
	enabledFile  = "module/apparmor/parameters/enabled"
	profilesFile = "kernel/security/apparmor/profiles"
)

func TestDetectAppArmor(t *testing.T) {
	works, kept := parser(t, false)
	fails, _ := parser(t, true)
	for name, c := range map[string]struct {
		files   map[string]string
		find    func() (string, error)
		enabled bool
		profile string
		err     string
		// recorded reports whether the profile is recorded before it is loaded.
		recorded bool
		// recordErr is the error of the journal.
		recordErr error
	}{
		"no AppArmor":    {find: works},
		"switched off":   {files: map[string]string{enabledFile: "N\n"}, find: works},
		"no parser":      {files: map[string]string{enabledFile: "Y\n"}, find: noParser, enabled: true},
		"parser fails":   {files: map[string]string{enabledFile: "Y\n"}, find: fails, enabled: true, err: "no such abstraction", recorded: true},
		"profile loaded": {files: map[string]string{enabledFile: "Y\n", profilesFile: "man (enforce)\n"}, find: works, enabled: true, profile: appArmorProfile, recorded: true},
		"profile exists": {files: map[string]string{enabledFile: "Y\n", profilesFile: appArmorProfile + " (enforce)\n"}, find: works, enabled: true, profile: appArmorProfile},
		"unknown":        {files: map[string]string{enabledFile: "Y\n"}, find: works, enabled: true, profile: appArmorProfile, recorded: true},
		"journal fails":  {files: map[string]string{enabledFile: "Y\n"}, find: works, enabled: true, recorded: true, recordErr: errors.New("disk full"), err: "disk full"},
	} {
		t.Run(name, func(t *testing.T) {
			var recorded string
			host, err := detectAppArmor(sysfs(t, c.files), func(profile string) error {
				recorded = profile
				return c.recordErr
			}, c.find)
			if want := map[bool]string{true: appArmorProfile}[c.recorded]; recorded != want {
				t.Errorf("recorded %q, want %q", recorded, want)
			}
			if host.Enabled != c.enabled || host.Default != c.profile {
				t.Errorf("enabled %t, default profile %q", host.Enabled, host.Default)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			_, statErr := os.Stat(kept)
			if loaded := statErr == nil; loaded != (c.profile != "") {
				t.Errorf("a profile was loaded: %t", loaded)
			}
			_ = os.Remove(kept)
		})
	}
}

func TestAppArmorProfileFor(t *testing.T) {
	loaded := AppArmor{Enabled: true, Default: appArmorProfile, sys: sysfs(t, map[string]string{
		profilesFile: appArmorProfile + " (enforce)\nlogging (complain)\n/usr/bin/man (enforce)\n",
	})}
	unreadable := AppArmor{Enabled: true, sys: t.TempDir()}
	var without AppArmor

	local := func(name string) *runtimeapi.SecurityProfile {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: name}
	}
	byDefault := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	unconfined := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	for name, c := range map[string]struct {
		host       AppArmor
		profile    *runtimeapi.SecurityProfile
		privileged bool
		want, err  string
	}{
		"none asked":                      {host: loaded, want: appArmorProfile},
		"none asked, privileged":          {host: loaded, privileged: true},
		"default":                         {host: loaded, profile: byDefault, want: appArmorProfile},
		"default, privileged":             {host: loaded, profile: byDefault, privileged: true},
		"unconfined":                      {host: loaded, profile: unconfined, want: "unconfined"},
		"loaded":                          {host: loaded, profile: local("logging"), want: "logging"},
		"loaded, privileged":              {host: loaded, profile: local("logging"), privileged: true, want: "logging"},
		"loaded, as annotations name it":  {host: loaded, profile: local("localhost/logging"), want: "logging"},
		"loaded, named like a file":       {host: loaded, profile: local("/usr/bin/man"), want: "/usr/bin/man"},
		"not loaded":                      {host: loaded, profile: local("absent"), err: "apparmor profile not found absent"},
		"end of a loaded one's name":      {host: loaded, profile: local("man"), err: "apparmor profile not found man"},
		"beginning of a loaded one's":     {host: loaded, profile: local("log"), err: "apparmor profile not found log"},
		"no name":                         {host: loaded, profile: local("localhost/"), err: "invalid AppArmor profile name"},
		"two lines":                       {host: loaded, profile: local("x\nlogging"), err: "invalid AppArmor profile name"},
		"securityfs not mounted":          {host: unreadable, profile: local("absent"), want: "absent"},
		"default not loaded":              {host: unreadable, profile: byDefault},
		"without AppArmor":                {host: without},
		"without AppArmor, default":       {host: without, profile: byDefault},
		"without AppArmor, unconfined":    {host: without, profile: unconfined},
		"without AppArmor, a profile":     {host: without, profile: local("logging"), err: "apparmor is not supported"},
		"without AppArmor, a missing one": {host: without, profile: local(""), err: "apparmor is not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.host.profileFor(&runtimeapi.LinuxContainerSecurityContext{Apparmor: c.profile}, c.privileged)
			if got != c.want {
				t.Errorf("profile %q, want %q", got, c.want)
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || err.Error() != c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

// TestOldProfiles checks that the deprecated profile fields are used only if the new fields are not
// set.
func TestOldProfiles(t *testing.T) {
	host := AppArmor{Enabled: true, Default: appArmorProfile, sys: t.TempDir()}
	for name, c := range map[string]struct {
		security  *runtimeapi.LinuxContainerSecurityContext
		want, err string
	}{
		"default":        {security: &runtimeapi.LinuxContainerSecurityContext{ApparmorProfile: "runtime/default"}, want: appArmorProfile},
		"unconfined":     {security: &runtimeapi.LinuxContainerSecurityContext{ApparmorProfile: "unconfined"}, want: "unconfined"},
		"of the host":    {security: &runtimeapi.LinuxContainerSecurityContext{ApparmorProfile: "localhost/logging"}, want: "logging"},
		"without a kind": {security: &runtimeapi.LinuxContainerSecurityContext{ApparmorProfile: "logging"}, err: `apparmor: invalid security profile "logging"`},
		"both": {security: &runtimeapi.LinuxContainerSecurityContext{ApparmorProfile: "localhost/logging",
			Apparmor: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}}, want: "unconfined"},
	} {
		got, err := host.profileFor(c.security, false)
		if got != c.want || c.err == "" && err != nil || c.err != "" && (err == nil || err.Error() != c.err) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	_, err := seccompFor(&runtimeapi.LinuxContainerSecurityContext{SeccompProfilePath: "localhost//no/such"}, false, nil)
	if err == nil || !strings.Contains(err.Error(), `cannot load seccomp profile "/no/such"`) {
		t.Errorf("a seccomp profile that is not there: %v", err)
	}
	if s, err := seccompFor(&runtimeapi.LinuxContainerSecurityContext{SeccompProfilePath: "unconfined"}, false, nil); s != nil || err != nil {
		t.Errorf("no seccomp profile: %v, %v", s, err)
	}
}
