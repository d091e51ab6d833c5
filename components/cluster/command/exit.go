package command

import "errors"

// Exit codes of all commands.
const (
	ExitGeneral   = 1
	ExitPreflight = 2
	ExitConfig    = 3
)

// ConfigError is err of a wrong flag or configuration file.
func ConfigError(err error) error { return WithCode(err, ExitConfig) }

// PreflightError is err of a machine that is not fit.
func PreflightError(err error) error { return WithCode(err, ExitPreflight) }

// WithCode is err that decides the exit code.
func WithCode(err error, code int) error { return codedError{err, code} }

// ExitCode is what err decides, or that of errors that decide nothing.
func ExitCode(err error) int {
	if coded, ok := errors.AsType[codedError](err); ok {
		return coded.code
	}
	return ExitGeneral
}

type codedError struct {
	error
	code int
}

// ExitCode is what the process ends with.
func (e codedError) ExitCode() int { return e.code }

func (e codedError) Unwrap() error { return e.error }
