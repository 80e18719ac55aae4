//! Enums whose values have names, as rule files, metrics and pages write them.

/// Makes an enum whose values have names.
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])*
        $vis:vis enum $Name:ident { $( $(#[$of:meta])* $Value:ident = $name:literal, )+ }
    ) => {
        $(#[$about])*
        $vis enum $Name { $( $(#[$of])* $Value, )+ }

        impl $Name {
            /// All values, in the order in which they are declared.
            $vis const ALL: [Self; [$( $name ),+].len()] = [$( Self::$Value ),+];

            /// Returns the name.
            $vis const fn name(self) -> &'static str {
                match self { $( Self::$Value => $name, )+ }
            }
        }
    };
}
