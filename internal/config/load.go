package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
)

// EnvPrefix begins every environment variable of a setting. A variable that
// begins so and names no setting is left alone: orchestrators make such ones.
const EnvPrefix = "TIDEMARK_"

// FileName is the configuration's name in a data directory.
const FileName = "tidemark.yaml"

// DefaultDataDir is where `tidemark dev` keeps its data.
const DefaultDataDir = ".tidemark"

const maxFileBytes = 1 << 20

// Resolve finds the configuration file that flags name: file as it is, or
// tidemark.yaml in dataDir, or, when both are empty, in DefaultDataDir.
func Resolve(file, dataDir string) (string, error) {
	switch {
	case file != "" && dataDir != "":
		return "", errors.New("both --config and --data-dir are given: give one")
	case file != "":
		return file, nil
	case dataDir == "":
		dataDir = DefaultDataDir
	}
	path := filepath.Join(dataDir, FileName)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("looking for the configuration: %w: start `tidemark dev`, which writes it, or name one with --config FILE or --data-dir DIR", err)
	}
	return path, nil
}

// Load reads defaults, then the file (none when path is empty), then the
// environment, and validates the result.
func Load(path string) (Config, error) {
	k := koanf.New(".")
	if path != "" {
		if err := loadFile(k, path); err != nil {
			return Config{}, err
		}
	}
	if err := loadEnvironment(k); err != nil {
		return Config{}, err
	}
	c, err := Default().with(k)
	if err != nil {
		return Config{}, err
	}
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("checking the configuration: %w", err)
	}
	return c, nil
}

// WithEnvironment is c with the settings that environment variables give, not
// validated. owned says of a setting's path why it cannot be given here, empty
// for those that can: giving such a one is refused by its name.
func (c Config) WithEnvironment(owned func(path string) (why string)) (Config, error) {
	var errs []error
	for _, s := range settings(&c) {
		if _, given := os.LookupEnv(s.env()); given {
			if why := owned(s.path); why != "" {
				errs = append(errs, fmt.Errorf("%s is in the environment: %s", s.env(), why))
			}
		}
	}
	if errs != nil {
		return c, errors.Join(errs...)
	}
	k := koanf.New(".")
	if err := loadEnvironment(k); err != nil {
		return c, err
	}
	return c.with(k)
}

func loadEnvironment(k *koanf.Koanf) error {
	known := make(map[string]setting)
	for _, s := range settings(new(Config)) {
		known[s.env()] = s
	}
	fromEnv := env.Provider(".", env.Opt{Prefix: EnvPrefix, TransformFunc: func(name, value string) (string, any) {
		s, ok := known[name]
		if !ok {
			return "", nil
		}
		return s.path, s.split(value)
	}})
	if err := k.Load(fromEnv, nil); err != nil {
		return fmt.Errorf("reading the environment: %w", err)
	}
	return nil
}

// with is c with what k has in the place of its own.
func (c Config) with(k *koanf.Koanf) (Config, error) {
	decoder := &mapstructure.DecoderConfig{
		Result: &c, TagName: "koanf", WeaklyTypedInput: true,
		DecodeHook: mapstructure.StringToTimeDurationHookFunc(),
	}
	if err := k.UnmarshalWithConf("", &c, koanf.UnmarshalConf{DecoderConfig: decoder}); err != nil {
		return Config{}, fmt.Errorf("reading the configuration: %w", err)
	}
	return c, nil
}

// loadFile reads a YAML file and refuses settings that do not exist.
func loadFile(k *koanf.Koanf, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	if info.Size() > maxFileBytes {
		return fmt.Errorf("reading the configuration: %s has more than %d bytes", path, maxFileBytes)
	}
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		return fmt.Errorf("reading the configuration %s: %w", path, err)
	}
	known := make(map[string]bool)
	for _, s := range settings(new(Config)) {
		known[s.path] = true
		for at := s.path; strings.Contains(at, "."); {
			at = at[:strings.LastIndexByte(at, '.')]
			known[at] = true // an empty section
		}
	}
	var errs []error
	for _, key := range k.Keys() {
		if !known[key] {
			errs = append(errs, fmt.Errorf("reading the configuration %s: %s is not a setting", path, key))
		}
	}
	return errors.Join(errs...)
}

// Write replaces the file whole with c, mode 0600: its URLs have passwords.
func (c Config) Write(path string) error {
	k := koanf.New(".")
	for _, s := range settings(&c) {
		if err := k.Set(s.path, s.plain()); err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
	}
	b, err := k.Marshal(yaml.Parser())
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return writeFile(path, append([]byte("# Any role runs with this: tidemark run ROLE... --config "+filepath.Base(path)+"\n"), b...))
}

// writeFile replaces a file whole: a kill leaves the old or the new content.
func writeFile(path string, content []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", path, err), os.Remove(tmp.Name()))
	}
	return nil
}

// setting is one leaf of Config.
type setting struct {
	path  string // kafka.brokers
	value reflect.Value
}

// settings lists the leaves of c in the order of its fields.
func settings(c *Config) []setting {
	var all []setting
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			path := prefix + v.Type().Field(i).Tag.Get("koanf")
			if f := v.Field(i); f.Kind() == reflect.Struct {
				walk(path+".", f)
			} else {
				all = append(all, setting{path: path, value: f})
			}
		}
	}
	walk("", reflect.ValueOf(c).Elem())
	return all
}

// env is the setting's environment variable.
func (s setting) env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(s.path, ".", "_"))
}

// split reads a list from the environment: separated by white space or
// commas; database URLs by white space only, since they may have commas.
func (s setting) split(value string) any {
	if s.value.Kind() != reflect.Slice {
		return value
	}
	if s.path == "postgres" {
		return strings.Fields(value)
	}
	return strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) })
}

// plain is the setting's value as a file writes it.
func (s setting) plain() any {
	if d, ok := s.value.Interface().(time.Duration); ok {
		return d.String()
	}
	return s.value.Interface()
}
